"""Every format that is registered, built-in or not, has goldens of every kind and a source."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from llmkit.contracts import FinishReason, ParserSpec
from llmkit.testing.reasoning_parsers import ReasoningParserContract
from llmkit.testing.tool_parsers import ToolParserContract, parse
from tests.soak.outputs import suites

CALLS: Mapping[str, ToolParserContract] = suites("tool_parser", "tool_parsers", ToolParserContract)
REASONING: Mapping[str, ReasoningParserContract] = suites(
    "reasoning_parser", "reasoning_parsers", ReasoningParserContract
)


@pytest.mark.parametrize("name", CALLS)
def test_goldens_of_calls_are_of_every_kind_and_name_their_source(name: str) -> None:
    CALLS[name].test_goldens_are_of_every_kind()
    assert CALLS[name].make_format().source, "goldens of nothing"


@pytest.mark.parametrize("name", REASONING)
def test_goldens_of_reasoning_are_of_every_kind_and_name_their_source(name: str) -> None:
    suite = REASONING[name]
    examples = suite.examples()
    assert len({example.id for example in examples}) == len(examples) >= 8
    kinds = [[type(event).__name__ for event in example.events] for example in examples]
    assert [] in kinds, "none without text"
    assert ["Content"] in kinds, "none without thinking"
    assert any(not example.text.isascii() for example in examples), "none with other than ASCII"
    assert suite.make_format().source, "goldens of nothing"
    if name == "identity":
        return
    assert ["Reasoning"] in kinds, "none that is cut off in thinking"
    assert ["Reasoning", "Content"] in kinds, "none with an answer after thinking"
    assert any(example.prompt_tail for example in examples), "none after a prompt's end"


NESTS = ('{"id": ', '{"type": [', '[{"id": ', '[{"id": "a", "type": [', '{"type": "function", "id": ')
"""Beginnings of calls within the beginnings of calls, as far as a parser that believed in them would read."""


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("name", CALLS)
def test_what_may_begin_a_call_again_and_again_is_read_in_linear_time(name: str, nest: str) -> None:
    def taken(length: int) -> float:
        parser = CALLS[name].make_format().parser(ParserSpec())
        text = nest * (length // len(nest))
        begun = time.process_time()
        for start in range(0, len(text), 16):
            parser.feed(text[start : start + 16])
        parser.finish(FinishReason.STOP)
        return time.process_time() - begun

    assert taken(1 << 14) < 64 * max(taken(1 << 10), 1e-3), "16 times as much; squared it would be 256"


@pytest.mark.parametrize("name", CALLS)
def test_text_right_behind_a_call_is_not_lost(name: str) -> None:
    """Also where the calls' place is not closed, and other calls might follow."""
    suite = CALLS[name]
    written = suite.write([("ping", {})])
    for end in range(len(written) + 1):
        parsed = parse(suite.make_format(), [written[:end], "Sorry, it is not known."])
        if parsed.calls and parsed.calls[-1].closed:
            assert "not known." in parsed.content, written[:end]
