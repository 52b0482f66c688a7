"""Outputs of models in every format that is registered: what random cuts are tried on."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from llmkit.config import PluginConfig
from llmkit.plugins import load_plugins
from llmkit.testing.reasoning_parsers import Example, ReasoningParserContract
from llmkit.testing.tool_parsers import Calls, ToolParserContract, tools_of
from llmkit.types import FinishReason, Tool
from tests.plugins.tool_parsers.common import NESTED, UNICODE
from tests.templates.round_trip import random_call

SUITES = Path(__file__).resolve().parents[1] / "plugins"
PROSE = ("So: ", "I look.\n", "2 < 3 and [a] or {b}, né? ", "\n\n", "Zürich 🙂 ", '"quoted" \\ word ')
DAMAGE = ("{", "}", "[", "]", '"', ",", ":", "<", ">", "\\", "\\u12", "null", "é", "\n", "''", "</")


@dataclass(frozen=True, slots=True)
class Output:
    """One output, and what it is parsed with."""

    id: str
    text: str
    finish: FinishReason
    tool: str
    tools: Sequence[Tool]
    reasoning: str | None = None
    prompt_tail: str = ""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    parallel: bool = True


def outputs(count: int, seed: int = 0) -> list[Output]:
    """So many, the same each time: every kind in every format in turn, every other one behind reasoning."""
    source = random.Random(seed)
    formats = list(suites("tool_parser", "tool_parsers", ToolParserContract).items())
    thinkers = list(suites("reasoning_parser", "reasoning_parsers", ReasoningParserContract).items())
    made = []
    for number in range(count):
        tool, suite = formats[number % len(formats)]
        kind = KINDS[(number + number // len(formats)) % len(KINDS)]
        reasoning, example = None, Example("none", "", ())
        if number % 2:
            reasoning, thinker = thinkers[number // 2 % len(thinkers)]
            example = source.choice(thinker.examples())
        body, tools = kind(suite, source)
        finish = FinishReason.LENGTH if kind is truncated else FinishReason.STOP
        stops = tuple(_slice(body, source, 6) for _ in range(2)) if number % 3 == 0 else ()
        made.append(
            Output(
                f"{number} {tool} {kind.__name__} behind {reasoning or 'no reasoning'}: {example.id}",
                example.text + body,
                finish,
                tool,
                tools or [Tool("f")],
                reasoning,
                example.prompt_tail,
                example.template_args,
                tuple(stop for stop in stops if stop),
                parallel=number % 5 != 0,
            )
        )
    return made


# ---- kinds of outputs ----

Made = tuple[str, Sequence[Tool]]


def none(suite: ToolParserContract, source: random.Random) -> Made:
    return "".join(source.choices(PROSE, k=4)), [Tool("f")]


def one(suite: ToolParserContract, source: random.Random) -> Made:
    return _written(suite, source, 1)


def parallel(suite: ToolParserContract, source: random.Random) -> Made:
    return _written(suite, source, 3)


def nested(suite: ToolParserContract, source: random.Random) -> Made:
    return _of(suite, [("plan", NESTED)])


def unicode(suite: ToolParserContract, source: random.Random) -> Made:
    return _of(suite, [("say", UNICODE)])


def around(suite: ToolParserContract, source: random.Random) -> Made:
    """Text before, between and behind calls."""
    first, tools = _written(suite, source, 1)
    second, more = _written(suite, source, 2)
    before, between, behind = source.choices(PROSE, k=3)
    return before + first + between + second + behind, [*tools, *more]


def truncated(suite: ToolParserContract, source: random.Random) -> Made:
    text, tools = around(suite, source)
    return text[: source.randrange(len(text) // 3, len(text))], tools


def malformed(suite: ToolParserContract, source: random.Random) -> Made:
    """Calls with pieces left out, written twice or replaced."""
    text, tools = around(suite, source)
    for _ in range(source.randint(1, 3)):
        start = source.randrange(len(text))
        end = start + source.randint(0, 4)
        text = text[:start] + source.choice([*DAMAGE, "", text[start:end] * 2]) + text[end:]
    return text, tools


def golden(suite: ToolParserContract, source: random.Random) -> Made:
    chosen = source.choice(suite.goldens)
    return chosen.text, chosen.tools


def goldens(suite: ToolParserContract, source: random.Random) -> Made:
    """Parts of them in any order."""
    chosen = source.choices(suite.goldens, k=3)
    text = "".join(_slice(golden.text, source, len(golden.text)) for golden in chosen)
    return text, [tool for golden in chosen for tool in golden.tools]


KINDS: Sequence[Callable[[ToolParserContract, random.Random], Made]] = (
    none,
    one,
    parallel,
    nested,
    unicode,
    around,
    truncated,
    malformed,
    golden,
    goldens,
)


def _written(suite: ToolParserContract, source: random.Random, most: int) -> Made:
    calls = []
    for _ in range(most if suite.parallel else 1):
        tool, arguments = random_call(source)
        calls.append((tool["function"]["name"], arguments))
    return _of(suite, calls)


def _of(suite: ToolParserContract, calls: Calls) -> Made:
    return suite.write(calls), tools_of(calls)


def _slice(text: str, source: random.Random, most: int) -> str:
    start = source.randrange(len(text) + 1)
    return text[start : start + source.randint(1, most)] if text else ""


# ---- the formats ----


def suites(kind: str, folder: str, contract: type) -> dict[str, Any]:
    """The compliance suite of every format that is registered, by the format's name."""
    found = {suite.name: suite() for suite in _classes(folder) if issubclass(suite, contract)}
    registry = load_plugins(PluginConfig()).registry
    formats = {name: registry.create(kind, name) for name in registry.names(kind)}
    tested = [formats[name] for name in found if name in formats]
    missing = [name for name, made in formats.items() if not any(made is other for other in tested)]
    if missing:  # by any of a format's names
        raise AssertionError(f"no suite in {SUITES / folder} for {kind} {sorted(missing)}")
    return {name: found[name] for name in sorted(formats) if name in found}


def _classes(folder: str) -> Iterator[type]:
    for path in sorted((SUITES / folder).glob("test_*.py")):
        for value in vars(import_module(f"tests.plugins.{folder}.{path.stem}")).values():
            if inspect.isclass(value) and getattr(value, "name", ""):
                yield value
