"""What the tests of several families share: goldens of every kind, written as each format writes calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmkit.contracts import ToolFormat
from llmkit.testing.components import create
from llmkit.testing.tool_parsers import Calls, Golden, ToolParserContract, tools_of

NESTED = {"a": {"b": [1, {"c": None}], "d": []}, "e": -1.5e3, "f": True, "g": ["x", "y"]}
UNICODE = {"city": "Zürich 🙂", "say": 'the "quoted" \\ word', "line": "one\ntwo", "tag": "</x> {1, 2]"}
NONE: dict[str, Any] = {}


def goldens(write: Callable[[Calls], str]) -> list[Golden]:
    """Of every kind."""
    one = [("get_weather", {"city": "Paris"})]
    several = [("look", {"id": 1}), ("look", {"id": 2}), ("list_open", NONE)]
    cut_off = write([("put", {"value": "abc", "more": 1})])
    unlike = "I need no tool for that: 2 < 3, a[0] and {x}."
    return [
        Golden("none", unlike, content=unlike),
        _of(write, "one", one),
        _of(write, "several", several),
        _of(write, "without arguments", [("ping", NONE)]),
        _of(write, "nested", [("plan", NESTED)]),
        _of(write, "unicode", [("say", UNICODE)]),
        _of(write, "empty text", [("say", {"what": "", "why": " "})]),
        _of(write, "text before", one, before="Let me see.\n"),
        _of(write, "text after", one, after="\n\nDone."),
        _of(write, "newlines around", one, before="\n\n", after="\n", content=""),
        _of(write, "newlines, then text", one, before="\n\n", after="\nDone.", content="\nDone."),
        Golden("cut off", cut_off[: cut_off.index("bc")], cut_off=("put", '{"value": "a')),
    ]


def _of(
    write: Callable[[Calls], str],
    golden_id: str,
    calls: Calls,
    before: str = "",
    after: str = "",
    content: str | None = None,
) -> Golden:
    written = write(calls)
    lead = written[: len(written) - len(written.lstrip())] if before else ""
    text = before + lead + after if content is None else content
    return Golden(golden_id, before + written + after, text, calls, tools=tools_of(calls))


class FormatContract(ToolParserContract):
    name: str
    own_goldens: Sequence[Golden] = ()

    @property
    def goldens(self) -> list[Golden]:  # type: ignore[override]
        return [*goldens(self.write), *self.own_goldens]

    def make_format(self) -> ToolFormat:
        made: ToolFormat = create("tool_parser", self.name)
        return made
