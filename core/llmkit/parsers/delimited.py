"""The family that writes a call's name and its JSON arguments between special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool
from llmkit.parsers.json_scanner import JsonScanner
from llmkit.parsers.scanning import Head, Machine, Place, matched, may_begin
from llmkit.parsers.schemas import object_schema
from llmkit.parsers.tags import Layout, check_read, json_of


@dataclass(frozen=True)
class Delimited:
    """One format: its tokens, and how a constraint writes them."""

    source: str
    openers: Sequence[str]
    special_tokens: Sequence[str]
    places: Sequence[Place]
    no_arguments: Sequence[Head]
    """What stands behind a call's head where it has no arguments."""
    layout: Layout
    name: re.Pattern[str] = field(kw_only=True)
    """Its group 1 is the name in what stands in its place."""

    def parser(self, spec: ParserSpec) -> OutputParser:
        return DelimitedParser(self)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        for tool in tools:
            check_read(self.parser(ParserSpec()), self.layout.call(tool.name, "{}"), tool.name)
        bodies = {tool.name: json_of(object_schema(tool)) for tool in tools}
        return self.layout.constraint(bodies, self.openers, required=required, parallel=parallel)


class DelimitedParser(Machine):
    """The arguments' text goes out as it comes."""

    def __init__(self, form: Delimited) -> None:
        super().__init__(form.openers, form.places)
        self._form = form
        self._scanner = JsonScanner()

    def _begin(self, head: re.Match[str]) -> bool:
        written = head[1].strip()
        name = self._form.name.fullmatch(written)
        self._open(written if name is None else name[1])
        self._scanner = JsonScanner()
        return self._go(self._before_json, head.end())

    def _before_json(self) -> bool:
        self._skip_space()
        if matched(self._form.no_arguments, self._text, self._at):
            self._arguments("{}")
            self._close()
            return self._go(self._behind, self._at)
        if self._text.startswith("{", self._at):
            return self._go(self._in_json, self._at)
        if may_begin(self._form.no_arguments, self._text, self._at):
            return False
        return self._go(self._prose, self._at)

    def _in_json(self) -> bool:
        self._at, text = self._scanner.scan(self._text, self._at)
        self._arguments(text)
        if self._scanner.done:
            self._close()
            return self._go(self._behind, self._at)
        return self._go(self._prose, self._at) if self._scanner.failed else False
