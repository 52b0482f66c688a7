"""Birch plans in ``<plan>`` tags and calls with a tag for each argument, all calls in one ``<do>``."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import (
    ParserHints,
    ReasoningFormat,
    RegisterReasoningParser,
    RegisterToolParser,
    ToolFormat,
)


@hookimpl
def register_tool_parsers(register: RegisterToolParser) -> None:
    register("birch", make_calls, recognizes=recognizes)


@hookimpl
def register_reasoning_parsers(register: RegisterReasoningParser) -> None:
    register("birch", make_plans, recognizes=recognizes)


def recognizes(hints: ParserHints) -> str | None:
    return "the model type is birch" if hints.model_type == "birch" else None


def make_plans(options: Any) -> ReasoningFormat:
    from llmkit.parsers.thinking import Tags

    return Tags(starts=("<plan>",), ends=("</plan>",), source="llmkit: examples/birch/README.md")


def make_calls(options: Any) -> ToolFormat:
    from llmkit.parsers.markup import Markup
    from llmkit.parsers.scanning import NAME, SPACE, Head, Place, literal
    from llmkit.parsers.tags import Layout

    call = (SPACE, literal("<call "), NAME, literal(">"))
    end = Head(SPACE, literal("</do>"))
    return Markup(
        source="llmkit: examples/birch/README.md",
        openers=("<do>",),
        places=(Place(Head(literal("<do>"), *call), again=(Head(*call),), ends=(end,)),),
        key=Head(literal("<arg "), NAME, literal(">")),
        value_ends=("</arg>",),
        call_ends=(Head(literal("</call>")),),
        layout=Layout("<call {name}>", "</call>", sections=[("<do>", "</do>")]),
        key_begin="<arg {key}>",
        after_value="",
    )
