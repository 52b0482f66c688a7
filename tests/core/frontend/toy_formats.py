"""Formats of a toy model: it thinks in ``(( ))`` and calls with ``[name arguments]``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    OutputParser,
    ParserSpec,
    Reasoning,
    StructuredOutput,
    Tool,
    ToolCallClosed,
    ToolCallOpened,
    held_back,
)
from llmkit.types import FinishReason


class Thoughts:
    """Open from the start where the prompt's tail ends with ``((``."""

    special_tokens: Sequence[str] = ()
    source = "a toy"

    def __init__(self, start: str = "((", end: str = "))") -> None:
        self.starts: Sequence[str] = (start,)
        self.ends: Sequence[str] = (end,)

    def parser(self, spec: ParserSpec) -> OutputParser:
        return _Thinking(spec, self.starts[0], self.ends[0])


class Brackets:
    special_tokens: Sequence[str] = ()
    openers: Sequence[str] = ("[",)
    source = "a toy"

    def parser(self, spec: ParserSpec) -> OutputParser:
        return _Calling()

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        if not required:
            raise ValueError("a toy calls always or as it likes")
        names = json.dumps([f"[{tool.name} {{}}]" for tool in tools])
        return StructuredOutput("choice", names)


class _Thinking:
    def __init__(self, spec: ParserSpec, start: str, end: str) -> None:
        self._start, self._end = start, end
        self._open = spec.prompt_tail.endswith(start)
        self._ends = (end, *spec.openers)
        self._held = ""

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        self._held += text
        while self._held:
            marks = self._ends if self._open else (self._start,)
            place, mark = min(((self._held.find(m), m) for m in marks if m in self._held), default=(-1, ""))
            if place < 0:
                sure = len(self._held) - held_back(self._held, marks)
                deltas += self._said(self._held[:sure])
                self._held = self._held[sure:]
                break
            deltas += self._said(self._held[:place])
            kept = mark if mark not in (self._start, self._end) else ""
            self._open = mark == self._start
            self._held = self._held[place + len(mark) :]
            deltas += self._said(kept)
        return deltas

    def finish(self, reason: FinishReason) -> list[Delta]:
        rest, self._held = self._held, ""
        return self._said(rest)

    def _said(self, text: str) -> list[Delta]:
        return [Reasoning(text) if self._open else Content(text)] if text else []


class _Calling:
    """Character by character; every call is well-formed but for its end."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._arguments = False

    def feed(self, text: str) -> list[Delta]:
        return [delta for character in text for delta in self._next(character)]

    def finish(self, reason: FinishReason) -> list[Delta]:
        return []

    def _next(self, character: str) -> list[Delta]:
        if self._name is None and not self._arguments:
            if character != "[":
                return [Content(character)]
            self._name = ""
        elif self._name is not None and character == " ":
            opened, self._name, self._arguments = ToolCallOpened(self._name), None, True
            return [opened]
        elif self._name is not None:
            self._name += character
        elif character == "]":
            self._arguments = False
            return [ToolCallClosed()]
        else:
            return [ArgumentsDelta(character)]
        return []


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("f", "g")
]
