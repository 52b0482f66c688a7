"""Formats between special tokens keep the contract."""

from __future__ import annotations

import json

import pytest

from llmkit.testing.components import create
from llmkit.testing.tool_parsers import Calls, Golden, parse
from tests.plugins.tool_parsers.common import FormatContract

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALLED = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


class TestDeepseekV3(FormatContract):
    name = "deepseek_v3"
    own_goldens = [
        Golden(
            "section forgotten",
            f'{CALL}function{SEP}f\n```json\n{{"a": 1}}\n```{CALLED} Done.',
            content=" Done.",
            calls=[("f", {"a": 1})],
        ),
        Golden("no arguments", f"{BEGIN}{CALL}function{SEP}f\n```json\n```{CALLED}{END}", calls=[("f", {})]),
        Golden("no call", f"{BEGIN}none{END}", content=f"{BEGIN}none{END}"),
    ]

    def write(self, calls: Calls) -> str:
        return (
            BEGIN
            + "\n".join(
                f"{CALL}function{SEP}{name}\n```json\n"
                f"{json.dumps(arguments, ensure_ascii=False)}\n```{CALLED}"
                for name, arguments in calls
            )
            + END
        )


class TestDeepseekV31(FormatContract):
    name = "deepseek_v31"
    own_goldens = [
        Golden("no arguments", f"{BEGIN}{CALL}f{SEP}{CALLED}{END}", calls=[("f", {})]),
        Golden("section forgotten", f"{CALL}f{SEP}{{}}{CALLED} Yes.", content=" Yes.", calls=[("f", {})]),
        Golden(
            "not JSON",
            f'{BEGIN}{CALL}f{SEP}{{"a": x}}{CALLED}{END}',
            content=f"x}}{CALLED}{END}",
            cut_off=("f", '{"a": '),
        ),
        Golden(
            "section's end forgotten, then text",
            f"{BEGIN}{CALL}f{SEP}{{}}{CALLED}{'word ' * 60}",
            content="word " * 60,
            calls=[("f", {})],
        ),
        Golden(
            "section's end forgotten",
            f"{BEGIN}{CALL}f{SEP}{{}}{CALLED}{CALL}g{SEP}{{}}{CALLED}",
            calls=[("f", {}), ("g", {})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return (
            BEGIN
            + "".join(
                f"{CALL}{name}{SEP}{json.dumps(arguments, ensure_ascii=False)}{CALLED}"
                for name, arguments in calls
            )
            + END
        )


class TestKimiK2(FormatContract):
    name = "kimi_k2"
    own_goldens = [
        Golden(
            "text before the call in its section",
            "Look: <|tool_calls_section_begin|> hmm <|tool_call_begin|>functions.look:0"
            '<|tool_call_argument_begin|>{"q": "a"}<|tool_call_end|> so <|tool_calls_section_end|> Yes.',
            content="Look:  Yes.",
            calls=[("look", {"q": "a"})],
        ),
        Golden(
            "a name with dots and no number",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>",
            calls=[("a.b", {})],
        ),
        Golden(
            "no arguments",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            "<|tool_call_end|><|tool_calls_section_end|>",
            calls=[("f", {})],
        ),
        Golden(
            "not JSON",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            '<|tool_call_argument_begin|>{"a": x}',
            content="x}",
            cut_off=("f", '{"a": '),
        ),
        Golden(
            "section in the singular",
            "<|tool_call_section_begin|><|tool_call_begin|>look:3<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>",
            calls=[("look", {})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return (
            "<|tool_calls_section_begin|>"
            + "".join(
                f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
                f"{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|>"
                for index, (name, arguments) in enumerate(calls)
            )
            + "<|tool_calls_section_end|>"
        )


class TestHarmony(FormatContract):
    name = "harmony"
    own_goldens = [
        Golden(
            "channel first",
            "<|start|>assistant<|channel|>commentary to=functions.tide-table <|constrain|>json<|message|>"
            '{"q": 1}<|call|>',
            calls=[("tide-table", {"q": 1})],
        ),
        Golden(
            "behind the prompt's header",
            ' to=functions.f<|channel|>commentary json<|message|>{"q": 1}',
            calls=[("f", {"q": 1})],
        ),
        Golden(
            "on the channel of analysis",
            '<|channel|>analysis to=functions.f code<|message|>{"q": 1}<|call|>',
            calls=[("f", {"q": 1})],
        ),
        Golden(
            "not JSON",
            '<|channel|>commentary to=functions.f json<|message|>{"a": x}',
            content="x}",
            cut_off=("f", '{"a": '),
        ),
        Golden("no arguments", "<|channel|>commentary to=functions.f<|message|><|call|>", calls=[("f", {})]),
        Golden(
            "for nobody",
            "<|channel|>commentary<|message|>{}<|end|>",
            content="<|channel|>commentary<|message|>{}<|end|>",
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "".join(
            f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>"
            f"{json.dumps(arguments, ensure_ascii=False)}<|call|>"
            for name, arguments in calls
        )


class TestOpenai(TestHarmony):
    name = "openai"


@pytest.mark.parametrize("gap", [256, 257])
def test_only_so_much_is_passed_over(gap: int) -> None:
    text = f"{BEGIN}{'x' * gap}{CALL}f{SEP}{{}}{CALLED}{END}"
    parsed = parse(create("tool_parser", "deepseek_v31"), [text])
    assert parsed.complete() == [("f", {})]
    assert parsed.content == ("" if gap == 256 else BEGIN + "x" * gap)
