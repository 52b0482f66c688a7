"""Atlas writes ``<|use|>{"name": ..., "parameters": {...}}<|done|>``, a pair of tokens for each call."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import ParserHints, RegisterToolParser, ToolFormat

OPENER, CLOSER = "<|use|>", "<|done|>"


@hookimpl
def register_tool_parsers(register: RegisterToolParser) -> None:
    register("atlas", make, recognizes=recognizes)


def recognizes(hints: ParserHints) -> str | None:
    return f"its template has {OPENER}" if OPENER in hints.template else None


def make(options: Any) -> ToolFormat:
    from llmkit.parsers.json_calls import JsonFormat
    from llmkit.parsers.tags import Layout

    return JsonFormat(
        source="llmkit: examples/atlas/README.md",
        openers=(OPENER,),
        closers=(CLOSER,),
        special_tokens=(OPENER, CLOSER),
        layout=Layout(OPENER + '{"name": {name}, "parameters": ', "}" + CLOSER),
    )
