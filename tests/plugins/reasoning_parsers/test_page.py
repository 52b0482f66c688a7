"""docs/parsers.md: its tables are what there is, and what it says to type works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llmkit.config import PluginConfig
from llmkit.contracts import Content, ParserHints, ParserSpec, Reasoning
from llmkit.plugins import load_plugins
from llmkit.registry import Registry
from llmkit.testing.reasoning_parsers import parsed

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "parsers.md").read_text()
ENTRY, WHOLE, SUITE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
VALUES: dict[str, Any] = {"__name__": "page"}
exec(WHOLE + SUITE, VALUES)  # noqa: S102 - the page's own code is what is tested
TestSlashes = VALUES["TestSlashes"]
"""The page's suite of the page's parser."""


@pytest.fixture(scope="module")
def registry() -> Registry:
    """With what ``register_reasoning_parsers`` and ``register_tool_parsers`` of the built-in plugins gave."""
    return load_plugins(PluginConfig()).registry


def rows(first: str) -> dict[str, list[str]]:
    """The table whose first column is called so: the other columns by name."""
    table = PAGE.partition(f"| `{first}` |")[2].partition("\n\n")[0]
    cells = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in table.splitlines()[2:]]
    return {name.strip("`"): others for name, *others in cells}


def test_every_tool_parser_is_listed_with_its_source(registry: Registry) -> None:
    sources = {}
    for name in registry.names("tool_parser"):
        sources[name] = registry.create("tool_parser", name).source or "*unverified*"
    assert {name: cells[-1] for name, cells in rows("--tool-call-parser").items()} == sources


def test_every_reasoning_parser_is_listed_with_what_it_begins_as(registry: Registry) -> None:
    listed = {name: cells[-1] for name, cells in rows("--reasoning-parser").items()}
    begins = {}
    for name in registry.names("reasoning_parser"):
        made = registry.create("reasoning_parser", name)
        begins[name] = type(parsed(made.parser(ParserSpec()), ["a"])[0]).__name__.lower()
    assert listed.pop("gptoss") == "as its header says"
    assert begins.pop("gptoss") == "content"
    assert listed == begins


def test_an_entry_of_a_family_is_a_format() -> None:
    values: dict[str, Any] = {}
    exec(ENTRY, values)  # noqa: S102
    registered: dict[str, Any] = {}

    def register(name: str, factory: Any, *, recognizes: Any) -> None:
        registered[name] = factory(None), recognizes

    values["register_reasoning_parsers"](register)
    made, recognizes = registered["slashes"]
    assert parsed(made.parser(ParserSpec()), ["/thi", "nk\na/answer\n\nb"]) == [Reasoning("a"), Content("b")]
    assert recognizes(ParserHints("a /think b", frozenset(), "")) == "its template has /think"
    assert recognizes(ParserHints("", frozenset(), "")) is None
