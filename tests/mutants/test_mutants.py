"""Each fault that is put into a parser is caught by its goldens and the compliance suite."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings

from llmkit.testing.reasoning_parsers import ReasoningParserContract
from llmkit.testing.tool_parsers import ToolParserContract
from llmkit_tool_parsers.plugin import OFFERED
from tests.mutants.faults import REASONING, TOOLS
from tests.mutants.mutation import Mutant
from tests.soak.outputs import suites

MODULES = {offered.name: f"llmkit_tool_parsers.{offered.module}" for offered in OFFERED}
SUITES = {
    "tool": suites("tool_parser", "tool_parsers", ToolParserContract),
    "reasoning": suites("reasoning_parser", "reasoning_parsers", ReasoningParserContract),
}
LEFT_OUT = (
    "test_goldens_are_of_every_kind",
    "test_time_is_linear_in_the_output",
    "test_its_time_is_linear_in_the_text",
)
"""Of goldens alone, and of time."""
SLOW = "constraint"
"""Compiles grammars: last."""


def cases() -> Iterator[Any]:
    """All of them in the longer tier, one of each format in the usual run."""
    for kind, table in (("tool", TOOLS), ("reasoning", REASONING)):
        for name, mutants in table.items():
            for number, mutant in enumerate(mutants):
                yield pytest.param(
                    kind,
                    name,
                    mutant,
                    id=f"{kind}-{name}-{mutant.fault}",
                    marks=[pytest.mark.full] if number else [],
                )


@pytest.fixture(autouse=True)
def _quick_examples() -> Iterator[None]:
    """The same examples each time, and the first that fails is enough."""
    before = settings.get_current_profile_name()
    settings.register_profile("mutants", phases=[Phase.generate], derandomize=True, database=None)
    settings.load_profile("mutants")
    yield
    settings.load_profile(before)


@pytest.mark.parametrize(("kind", "name", "mutant"), cases())
def test_a_fault_is_caught(kind: str, name: str, mutant: Mutant) -> None:
    module = MODULES[name] if kind == "tool" else "llmkit_reasoning_parsers.formats"
    made = mutant.formats(module)[name]
    assert fault_in(SUITES[kind][name], made), f"nothing in the suite of {name} sees: {mutant.fault}"


@pytest.mark.parametrize(("kind", "table"), [("tool", TOOLS), ("reasoning", REASONING)])
def test_there_are_ten_of_each(kind: str, table: dict[str, list[Mutant]]) -> None:
    for name, mutants in table.items():
        assert len({(mutant.module, mutant.old, mutant.new) for mutant in mutants}) >= 10, name


@pytest.mark.parametrize("table", [TOOLS, REASONING], ids=["tool", "reasoning"])
def test_every_fault_is_one_of_the_source_as_it_is(table: dict[str, list[Mutant]]) -> None:
    """Those that the usual run leaves out too: a source that changes takes its faults along."""
    for mutant in {mutant for mutants in table.values() for mutant in mutants}:
        assert mutant.source()


@pytest.mark.parametrize("kind", [pytest.param("tool", marks=pytest.mark.full), "reasoning"])
def test_what_has_no_fault_passes(kind: str) -> None:
    """So that it is the fault that is caught."""
    table = TOOLS if kind == "tool" else REASONING
    nothing = Mutant("none", "llmkit.parsers.tags", '"""Structural tags', '"""Structural tags')
    for name in table:
        module = MODULES[name] if kind == "tool" else "llmkit_reasoning_parsers.formats"
        assert fault_in(SUITES[kind][name], nothing.formats(module)[name]) is None, name


def fault_in(suite: Any, made: Any) -> str | None:
    """The first test of a suite that fails for a format."""
    suite = type(suite)()
    suite.make_format = lambda: made
    for name, test in sorted(_tests(suite), key=lambda test: SLOW in test[0]):
        try:
            test()
        except pytest.skip.Exception:
            continue
        except Exception as error:  # noqa: BLE001 - a parser that raises anything is at fault
            return f"{name}: {error}"
    return None


def _tests(suite: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    for cls in reversed(type(suite).__mro__):
        for name in vars(cls):
            if name.startswith("test_") and name not in LEFT_OUT:
                test = getattr(suite, name)
                examples = {"examples": 100} if "examples" in inspect.signature(test).parameters else {}
                yield name, lambda test=test, examples=examples: test(**examples)
