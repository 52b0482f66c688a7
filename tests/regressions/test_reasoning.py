"""Faults that users of other servers reported in reasoning, each with what is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from llmkit.contracts import ParserSpec
from llmkit.events import Finished
from llmkit.fold import FoldedChoice, fold
from llmkit.frontend.parsing import ParsedText
from llmkit.frontend.stop import StopMatcher
from llmkit.testing.components import create
from llmkit.testing.reasoning_parsers import cuts
from llmkit.types import FinishReason

OPEN = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Report:
    parsers: Sequence[str]
    pieces: Sequence[str]
    reasoning: str
    content: str
    prompt_tail: str = ""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    tool_parser: str = ""
    calls: Sequence[tuple[str, str]] = ()
    stop: Sequence[str] = ()


REPORTS = {
    # B037, vllm-project/vllm#22507: the start tag is in the prompt
    "B037": Report(["deepseek_r1", "qwen3"], ["weigh it", "</think>", "\n\nYes."], "weigh it", "Yes.", OPEN),
    # B038, InternLM/lmdeploy#4754: an end tag in two pieces
    "B038": Report(
        ["deepseek_r1", "qwen3", "glm45"], ["a < b so ", "</", "think>Go"], "a < b so", "Go", OPEN
    ),
    # B039, vllm-project/vllm#30625: thinking is switched off, and the prompt has closed it
    "B039": Report(
        ["qwen3", "deepseek_r1"],
        ["The ans", "wer."],
        "",
        "The answer.",
        CLOSED,
        template_args={"enable_thinking": False},
    ),
    # B041, vllm-project/vllm#42691: the end of reasoning and a call in one piece
    "B041": Report(
        ["qwen3"],
        ["need a tool", ' now</think>\n<tool_call>{"name": "w", "arguments": {"a": 1}}</tool_call>'],
        "need a tool now",
        "",
        OPEN,
        tool_parser="hermes",
        calls=[("w", '{"a": 1}')],
    ),
    # B045, vllm-project/vllm#55210: a tag shares its piece with text
    "B045": Report(
        ["deepseek_r1", "qwen3", "glm45", "kimi_k2"], ["<think>abc", "def</think>xyz"], "abcdef", "xyz"
    ),
    # B047, vllm-project/vllm#51641: a stop string that never comes holds nothing of the reasoning
    "B047": Report(
        ["qwen3"], ["one", " two", "</think>", "\n", "three"], "one two", "three", OPEN, stop=["ZZZZZZZZ"]
    ),
    # B076, vllm-project/vllm#14550: a stop string in the reasoning is none
    "B076": Report(
        ["qwen3"],
        ["blue or green", "</think>", "It is bl", "ue now"],
        "blue or green",
        "It is ",
        OPEN,
        stop=["blue"],
    ),
}


def said(report: Report, parser: str, pieces: Sequence[str]) -> FoldedChoice:
    tools = create("tool_parser", report.tool_parser) if report.tool_parser else None
    spec = ParserSpec(
        prompt_tail=report.prompt_tail,
        template_args=report.template_args,
        openers=tools.openers if tools else (),
    )
    machine = ParsedText(
        create("reasoning_parser", parser).parser(spec),
        tools.parser(spec) if tools else None,
        StopMatcher(report.stop),
        one_call=False,
    )
    events = []
    for piece in pieces:
        events += machine.feed(piece, armed=True)
        if machine.ended:
            break
    else:
        events += machine.finish("", FinishReason.STOP, armed=True)
    return fold([*events, Finished(FinishReason.STOP)])


def every_cut(report: Report) -> Iterator[Sequence[str]]:
    text = "".join(report.pieces)
    yield report.pieces
    yield from cuts(text)


@pytest.mark.parametrize("name", REPORTS)
def test_what_was_reported_is_right_under_every_cut(name: str) -> None:
    report = REPORTS[name]
    for parser in report.parsers:
        for pieces in every_cut(report):
            found = said(report, parser, pieces)
            assert found.reasoning.strip() == report.reasoning, (parser, pieces)
            assert found.text == report.content, (parser, pieces)
            calls = [(call.name, call.arguments) for call in found.calls]
            assert calls == [*report.calls], (parser, pieces)
            assert all(call.complete for call in found.calls)
