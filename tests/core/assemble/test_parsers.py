"""Formats as a server starts with them: by name or by the model, and what the summary says of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llmkit import UnknownName
from llmkit.assemble.parsers import open_formats
from llmkit.config import sources
from llmkit.contracts import Choice
from llmkit.registry import Entry, Registry
from tests.core.frontend.toy_formats import Brackets, Thoughts
from tests.core.frontend.toy_tokenizers import Bytes


class FromNowhere(Brackets):
    source = ""


class ThoughtsFromNowhere(Thoughts):
    source = ""


COMPONENTS = Registry()
COMPONENTS.add(
    Entry(kind, name, lambda options, made=made: made(), "toys", traits={"recognizes": lambda hints: None})
    for kind, name, made in (
        ("tool_parser", "known", Brackets),
        ("tool_parser", "heard-of", FromNowhere),
        ("reasoning_parser", "known", Thoughts),
        ("reasoning_parser", "heard-of", ThoughtsFromNowhere),
    )
)


def chosen(name: str, template: str = "{{ messages }}{{ tools }}") -> Sequence[Choice]:
    config = sources.load({"tool_call_parser": name, "reasoning_parser": name}, {}).config
    formats, choices = open_formats(config, COMPONENTS, Bytes(), template, "toy")
    assert [choice.name == name for choice in choices] == [
        formats.tool_name == name,
        formats.reasoning_name == name,
    ]
    return choices


def test_the_summary_says_which_formats_are_unverified() -> None:
    assert [choice.why for choice in chosen("known")] == ["by name"] * 2
    unverified = "by name; unverified: its source could not be found"
    assert [choice.why for choice in chosen("heard-of")] == [unverified] * 2
    assert [choice.name for choice in chosen("auto")] == ["none", "none"]


def test_the_summary_says_that_a_template_shows_no_tools() -> None:
    tool, reasoning = chosen("known", "{{ messages }}")
    assert tool.why == "by name; the chat template does not show tools to the model"
    assert reasoning.why == "by name"


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_a_name_that_is_nobodys_is_refused_with_those_that_are_allowed(flag: str) -> None:
    config = sources.load({flag: "knwon"}, {}).config
    message = f"--{flag.replace('_', '-')}: no .* 'knwon'; did you mean 'known'\\? Known: heard-of, known"
    with pytest.raises(UnknownName, match=message):
        open_formats(config, COMPONENTS, Bytes(), "", "")
