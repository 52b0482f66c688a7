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
from llmkit_reasoning_parsers.formats import FORMATS

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


def test_every_reasoning_parser_is_listed_with_what_it_begins_as_and_its_source(registry: Registry) -> None:
    listed = {name: (cells[-2], cells[-1]) for name, cells in rows("--reasoning-parser").items()}
    facts = {}
    for name in registry.names("reasoning_parser"):
        made = registry.create("reasoning_parser", name)
        begins = type(parsed(made.parser(ParserSpec()), ["a"])[0]).__name__.lower()
        if made is FORMATS["gptoss"]:
            assert begins == "content"
            begins = "as its header says"
        facts[name] = begins, made.source or "*unverified*"
    assert listed == facts


@pytest.mark.parametrize("kind", ["tool_parser", "reasoning_parser"])
def test_a_source_is_a_repository_and_a_path_or_a_model_and_what_of_it(registry: Registry, kind: str) -> None:
    for name in registry.names(kind):
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)?: \S.*|", registry.create(kind, name).source), name


@pytest.mark.parametrize(("kind", "flag"), [("tool", "tool-call"), ("reasoning", "reasoning")])
def test_another_name_is_the_same_format(registry: Registry, kind: str, flag: str) -> None:
    same = {
        name: found[1]
        for name, cells in rows(f"--{flag}-parser").items()
        if (found := re.fullmatch("as `(.*)`", cells[0]))
    }
    assert len(same) > 5
    for name, other in same.items():
        assert registry.create(f"{kind}_parser", name) is registry.create(f"{kind}_parser", other), name


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
