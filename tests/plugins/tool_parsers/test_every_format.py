"""Every format that is registered, built-in or not, has goldens of every kind and a source."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmkit.testing.reasoning_parsers import ReasoningParserContract
from llmkit.testing.tool_parsers import ToolParserContract
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
