"""The family that writes calls as Python does: ``name(key=value, ...)``, in a list or between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool
from llmkit.parsers.python_values import LiteralReader
from llmkit.parsers.scanning import SPACE, Head, Machine, Place, literal, may_begin
from llmkit.parsers.schemas import held_parameters
from llmkit.parsers.tags import (
    Layout,
    Part,
    check_read,
    json_of,
    key_refused,
    members,
)

_FUNCTION = r"([A-Za-z_][\w.-]{0,127}+)"
_KEY = r"([^\W\d]\w{0,127}+)"
_NEXT_KEY = Head(SPACE, ",", SPACE, _KEY, SPACE, "=")
_END = Head(SPACE, ",?", SPACE, r"\)")


@dataclass(frozen=True)
class Pythonic:
    """One format: what stands around its calls."""

    source: str
    openers: Sequence[str]
    special_tokens: Sequence[str]
    places: Sequence[Place]
    layout: Layout

    def parser(self, spec: ParserSpec) -> OutputParser:
        return PythonicParser(self, spec.tools)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        for tool in tools:
            check_read(self.parser(ParserSpec()), self.layout.call(tool.name), tool.name)
        return self.layout.constraint(
            {tool.name: _body(tool) for tool in tools}, self.openers, required=required, parallel=parallel
        )


class PythonicParser(Machine):
    """Values are written as JSON while they come."""

    def __init__(self, form: Pythonic, tools: Sequence[Tool]) -> None:
        super().__init__(form.openers, form.places)
        self._names = {tool.name for tool in tools}
        self._line_begins = True
        self._value = LiteralReader()

    def _accepts(self, head: re.Match[str]) -> bool:
        """A bare list in the midst of prose is a call only of a tool that there is."""
        if self._text[head.start()] != "[" or self._at_edge or head[1] in self._names:
            return True
        return not self._names and self._line_begins

    def _content(self, text: str) -> None:
        super()._content(text)
        if text:
            self._line_begins = text[-1] == "\n"

    def _begin(self, head: re.Match[str]) -> bool:
        self._open(head[1])
        if head.re.groups == 1:
            self._arguments("{}")
            self._close()
            return self._go(self._behind, head.end())
        return self._argument("{", head[2], head.end())

    def _argument(self, before: str, key: str, at: int) -> bool:
        self._arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        self._value = LiteralReader()
        return self._go(self._in_value, at)

    def _in_value(self) -> bool:
        out: list[str] = []
        self._at = self._value.read(self._text, self._at, out)
        self._arguments("".join(out))
        if self._value.failed:
            self._content(self._value.held)
            return self._go(self._prose, self._at)
        return self._go(self._behind_value, self._at) if self._value.done else False

    def _behind_value(self) -> bool:
        if key := _NEXT_KEY.match(self._text, self._at):
            return self._argument(", ", key[1], key.end())
        if end := _END.match(self._text, self._at):
            self._arguments("}")
            self._close()
            return self._go(self._behind, end.end())
        if may_begin((_NEXT_KEY, _END), self._text, self._at):
            return False
        return self._go(self._prose, self._at)


def _body(tool: Tool) -> Part:
    properties, needed = held_parameters(tool)
    for key in properties:
        if not re.fullmatch(_KEY, key):
            raise key_refused(key, tool.name)
    values = {key: json_of(schema, tool.parameters) for key, schema in properties.items()}
    return members(values, needed, "=", ", ")


def _heads(*before: str | tuple[str, ...]) -> tuple[Head, Head]:
    """Of a call without arguments and of one with some."""
    call = (*before, _FUNCTION, r"\(", SPACE)
    return Head(*call, r"\)"), Head(*call, _KEY, SPACE, "=")


def call_places(
    *before: str | tuple[str, ...], again: str | tuple[str, ...], between: str = "", end: str
) -> list[Place]:
    """Where calls stand behind ``before``: each but the first behind ``again``, up to ``end``."""
    return [
        Place(
            head,
            again=_heads(SPACE, *again, SPACE) if again else _heads(SPACE),
            between=(Head(SPACE, ",?", SPACE, literal(between)),) if between else (),
            ends=(Head(SPACE, ",?", SPACE, literal(end)),),
        )
        for head in _heads(*before)
    ]


def in_list(opener: str, closer: str, *, bare: bool, source: str) -> Pythonic:
    """``[f(a=1), g()]`` within tokens of its own, or where the list stands alone."""
    places, sections = [], [(opener + "[", "]" + closer)]
    if opener and bare:
        sections.append(("[", "]"))
    if opener:
        places += call_places(literal(opener), SPACE, r"\[", SPACE, again=",", between="]", end=closer)
    if bare:
        places += call_places(r"\[", SPACE, again=",", end="]")
    tokens = [token for token in (opener, closer) if token]
    return Pythonic(
        source=source,
        openers=[*([opener] if opener else []), *(["["] if bare else [])],
        special_tokens=tokens,
        places=places,
        layout=Layout("{name}(", ")", ", ", sections=sections),
    )
