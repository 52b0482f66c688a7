"""Faults that users of other servers reported in calls written as JSON, each with what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from llmkit.contracts import Tool
from llmkit.testing.components import create
from llmkit.testing.tool_parsers import Parsed, parse


@dataclass(frozen=True)
class Report:
    parser: str
    pieces: Sequence[str]
    calls: Sequence[tuple[str, Any]] = ()
    content: str = ""
    tools: Sequence[Tool] = ()


REPORTS = {
    # B001, vllm-project/vllm#36360: the tail of the arguments shares a piece with the closing tag
    "B001": Report(
        "hermes",
        ['<tool_call>\n{"name": "set_level", "arguments": {"level": 4', "2}", "}\n</tool_call>"],
        calls=[("set_level", {"level": 42})],
    ),
    # B002, vllm-project/vllm#28806: empty arguments are arguments
    "B002": Report(
        "hermes",
        ['<tool_call>\n{"name": "ping", ', '"arguments": {}', "}\n</tool_call>"],
        calls=[("ping", {})],
    ),
    # B004, vllm-project/vllm#27701: arguments nested deeper than an expression reaches
    "B004": Report(
        "llama3_json",
        ['{"name": "plan", "parameters": {"a": {"b": {"c": {"d": [1, {"e": 2}]}}}}}'],
        calls=[("plan", {"a": {"b": {"c": {"d": [1, {"e": 2}]}}}})],
    ),
    # B006, vllm-project/vllm#19024: text with braces after a bare call
    "B006": Report(
        "llama3_json",
        ['{"name": "list_open", "parameters": {}}', "\n\nDone with {list_open}, anything else?"],
        calls=[("list_open", {})],
        content="\n\nDone with {list_open}, anything else?",
    ),
    # B007, vllm-project/vllm#17703: other than ASCII in arguments, which come once
    "B007": Report(
        "llama3_json",
        ['{"name": "weather", "parameters": {"city": "Zü', 'rich"}}'],
        calls=[("weather", {"city": "Zürich"})],
    ),
    # B009, vllm-project/vllm#13622: numbers as arguments, in pieces
    "B009": Report(
        "mistral",
        ["[TOOL_CALLS]", '[{"name": "add", ', '"arguments": {"a": ', "3", ', "b": 4', "5}}]"],
        calls=[("add", {"a": 3, "b": 45})],
    ),
    # B017, vllm-project/vllm#47907: several calls in one piece
    "B017": Report(
        "granite",
        ['<|tool_call|>[{"name": "f", "arguments": {"n": 11}}, {"name": "g", "arguments": {"m": [2]}}]'],
        calls=[("f", {"n": 11}), ("g", {"m": [2]})],
    ),
    # B025, vllm-project/vllm#48795: a list within the list of calls
    "B025": Report(
        "phi4_mini_json",
        ['functools[{"name": "tag", "arguments": {"t": ["a", "b"]}}]'],
        calls=[("tag", {"t": ["a", "b"]})],
    ),
    # B027, vllm-project/vllm#48852: JSON without spaces
    "B027": Report(
        "jamba",
        ['<tool_calls>[{"name":"f"', ',"arguments":{"x":1,"y":"b"}}', "]</tool_calls>"],
        calls=[("f", {"x": 1, "y": "b"})],
    ),
    # B036, smg-project/smg#2271: an answer that looks like a call's beginning
    "B036": Report(
        "llama3_json", ['{"answer": ', "42}"], content='{"answer": 42}', tools=[Tool("w")]
    ),
    "B036, no JSON": Report(
        "llama3_json", ["{ not json at all"], content="{ not json at all", tools=[Tool("w")]
    ),
}  # fmt: skip


@pytest.mark.parametrize("id", REPORTS)
def test_calls_and_content_are_right_however_the_pieces_come(id: str) -> None:
    report = REPORTS[id]
    made = create("tool_parser", report.parser)
    text = "".join(report.pieces)
    for pieces in (report.pieces, [text], list(text)):
        parsed: Parsed = parse(made, pieces, report.tools)
        assert parsed.complete() == list(report.calls)
        assert all(call.closed for call in parsed.calls)
        assert parsed.content == report.content


# B007, vllm-project/vllm#17703
def test_arguments_are_the_text_that_the_model_wrote() -> None:
    text = '{"name": "weather", "parameters": {"city":  "Z\\u00fcrich", "n": 1.0e2}}'
    parsed = parse(create("tool_parser", "llama3_json"), list(text))
    assert parsed.calls[0].arguments == '{"city":  "Z\\u00fcrich", "n": 1.0e2}'


# B031, vllm-project/vllm#53269: the parser's part: a call that was cut off is never closed
def test_a_call_that_was_cut_off_stays_open() -> None:
    text = '<tool_call>{"name": "w", "arguments": {"t": "abc'
    for pieces in ([text], list(text)):
        parsed = parse(create("tool_parser", "hermes"), pieces)
        assert [(call.name, call.arguments, call.closed) for call in parsed.calls] == [
            ("w", '{"t": "abc', False)
        ]
        assert parsed.content == ""
