"""A small number of the random cuts that ``make soak`` tries, and that a format which minds them is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmkit.config import PluginConfig
from llmkit.contracts import Content, Delta, FinishReason, ParserSpec
from llmkit.plugins import load_plugins
from llmkit.testing.reasoning_parsers import ReasoningParserContract
from llmkit.testing.tool_parsers import ToolParserContract
from llmkit.types import Tool
from tests.soak.cuts import CORPUS, run
from tests.soak.outputs import Output, outputs, suites


def test_no_cut_changes_what_comes_of_an_output() -> None:
    registry = load_plugins(PluginConfig()).registry
    report = run(2000, outputs(CORPUS), registry.create)
    print(report)
    assert not report.differences, report.differences[0]
    assert report.cuts == 2000
    calls = suites("tool_parser", "tool_parsers", ToolParserContract)
    thinking = suites("reasoning_parser", "reasoning_parsers", ReasoningParserContract)
    assert report.formats == {f"tool {name}" for name in calls} | {f"reasoning {name}" for name in thinking}


def test_the_outputs_are_the_same_each_time() -> None:
    assert outputs(40) == outputs(40)
    assert outputs(40) != outputs(40, seed=1)


class Forgetful:
    """Drops ``<b>``, if it comes in one piece."""

    special_tokens: Sequence[str] = ("<b>",)
    openers: Sequence[str] = ("<b>",)

    def parser(self, spec: ParserSpec) -> Forgetful:
        return self

    def feed(self, text: str) -> list[Delta]:
        kept = text.replace("<b>", "")
        return [Content(kept)] if kept else []

    def finish(self, reason: FinishReason) -> list[Delta]:
        return []


def test_the_smallest_cut_that_shows_a_difference_is_given() -> None:
    def create(kind: str, name: str) -> Any:
        return Forgetful()

    report = run(50, [Output("é", "aé <b> c", FinishReason.STOP, "forgetful", [Tool("f")])], create)
    assert 0 < len(report.differences) < 50
    first = report.differences[0]
    assert len(first.pieces) == 2
    assert b"".join(first.pieces).decode() == "aé <b> c"
    assert first.streamed == [Content("aé <b> c"), None]
    assert first.whole == [Content("aé  c"), None]
