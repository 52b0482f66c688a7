"""Faults that users of other servers reported in calls not written as JSON, each with what is right."""

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


WHO = Tool(
    "who",
    parameters={
        "type": "object",
        "properties": {
            "last": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "trees": {"type": "array", "items": {"type": "string"}},
        },
    },
)
REPORTS = {
    # B012, sgl-project/sglang#38869: brackets in strings are no structure
    "B012": Report(
        "pythonic",
        ['[find(q="a]', "b\"), find(q='c[d')] do", "ne"],
        calls=[("find", {"q": "a]b"}), ("find", {"q": "c[d"})],
        content=" done",
    ),
    # B015, vllm-project/vllm#48342: the tail of the arguments shares a piece with the end tokens
    "B015": Report(
        "deepseek_v3",
        [
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>pick\n```json\n{"o": {"id": ',
            '"x"',
            "}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ],
        calls=[("pick", {"o": {"id": "x"}})],
    ),
    # B019, vllm-project/vllm#28543: stray text between the section's marker and the call's
    "B019": Report(
        "kimi_k2",
        [
            "Look: <|tool_calls_sec",
            "tion_begin|> hmm <|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
            '{"q": "a"}<|tool_call_end|><|tool_calls_section_end|>',
        ],
        calls=[("look", {"q": "a"})],
        content="Look: ",
    ),
    # B021, vllm-project/vllm#40195: an optional string, and an array, whose type the schema has
    "B021": Report(
        "glm45",
        [
            "<tool_call>who\n<arg_key>last</arg_key>\n<arg_value>Nga",
            'ta</arg_value>\n<arg_key>trees</arg_key>\n<arg_value>["Oak",',
            '"Elm", "Fir"]</arg_value>\n</tool_call>',
        ],
        calls=[("who", {"last": "Ngata", "trees": ["Oak", "Elm", "Fir"]})],
        tools=[WHO],
    ),
    # B023, sgl-project/sglang#40739: text behind a call
    "B023": Report(
        "qwen3_coder",
        [
            "Let me see. <tool_call>\n<function=look>\n<parameter=id>\nA-9\n</parameter>\n</function>\n"
            "</tool_call>Back ",
            "soon.",
        ],
        calls=[("look", {"id": "A-9"})],
        content="Let me see. Back soon.",
    ),
    # B029, vllm-project/vllm#51977: the recipient before the channel
    "B029 recipient first": Report(
        "harmony",
        ['<|start|>assistant to=functions.tide-table<|channel|>commentary json<|message|>{"q": 1}<|call|>'],
        calls=[("tide-table", {"q": 1})],
    ),
    # B029, vllm-project/vllm#51977: the recipient behind the channel, and a constraint
    "B029 channel first": Report(
        "openai",
        [
            "<|start|>assistant<|channel|>commentary to=functions.tide-table <|constrain|>json<|message|>"
            '{"q": 1}<|call|>'
        ],
        calls=[("tide-table", {"q": 1})],
    ),
}
TWO_CALLS = {
    "qwen3_coder": "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=b>\n<parameter=y>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
    "<tool_call>b\n<arg_key>y</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="a">\n<parameter name="x">1</parameter>\n</invoke>\n'
    '<invoke name="b">\n<parameter name="y">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "pythonic": "[a(x=1), b(y=2)]",
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
    '<｜tool▁call▁begin｜>b<｜tool▁sep｜>{"y": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi_k2": "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{"x": 1}'
    '<|tool_call_end|><|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{"y": 2}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "harmony": '<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 1}<|call|>'
    '<|start|>assistant<|channel|>commentary to=functions.b <|constrain|>json<|message|>{"y": 2}<|call|>',
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize("cut", ["as reported", "whole", "a character a piece"])
def test_reported_outputs(report: Report, cut: str) -> None:
    whole = "".join(report.pieces)
    pieces = {"as reported": report.pieces, "whole": [whole], "a character a piece": list(whole)}[cut]
    parsed = parse(create("tool_parser", report.parser), pieces, report.tools)
    assert parsed.complete() == list(report.calls)
    assert len(parsed.calls) == len(report.calls)
    assert parsed.content == report.content


# B034, ollama/ollama#15457: parallel calls are calls of their own
@pytest.mark.parametrize(("parser", "text"), TWO_CALLS.items())
@pytest.mark.parametrize("size", [1, 1000])
def test_two_calls_are_two(parser: str, text: str, size: int) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    parsed: Parsed = parse(create("tool_parser", parser), pieces)
    assert parsed.complete() == [("a", {"x": 1}), ("b", {"y": 2})]
    assert parsed.content == ""
