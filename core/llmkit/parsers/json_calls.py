"""The family that writes calls as JSON objects, alone or in a list, between markers or bare."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool
from llmkit.parsers.json_scanner import JsonScanner
from llmkit.parsers.reading import CallReader, Malformed, Reading
from llmkit.parsers.schemas import object_schema
from llmkit.parsers.tags import Layout, Part, check_read, json_of

_HALF_PAIR = re.compile("[\ud800-\udfff]")
_PLAIN_STRING = re.compile(r'"[^"\\\x00-\x1f\ud800-\udfff]*+"')
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_BARE_KEYS = ("name", *_ARGUMENTS, "type", "id")


class JsonCallReader(CallReader):
    """Objects with a name and arguments, in a list or one after the other, then perhaps a closer.

    A bare object, which no marker tells from an answer in JSON, is a call if its name comes before
    arguments and it has no key that calls have not, and nothing but text or a number beside them; without
    arguments, only if the name is a tool's. Where tools are strict only what begins exactly as a constraint
    has it is one: of anything else a constraint knows nothing.
    """

    def __init__(self, form: JsonFormat, spec: ParserSpec) -> None:
        self._form = form
        self._names = frozenset(tool.name for tool in spec.tools)
        strict = any(tool.strict for tool in spec.tools)
        self._bare_begin = (
            form.layout.call_begin.partition("{name}")[0] if strict and "{" in form.bare else ""
        )
        super().__init__((*form.openers, *form.bare))

    def read_calls(self, opener: str) -> Reading[None]:
        bare = opener in self._form.bare
        yield from self.skip_space()
        if (yield from self.accept("[")):
            yield from self._list(bare)
        else:
            yield from self._one_after_the_other(bare)
        yield from self.skip_space()
        if not self._form.closers or not (yield from self.accept(*self._form.closers)):
            self.unread()

    def _list(self, bare: bool) -> Reading[None]:
        comma = ","
        while comma:
            yield from self.skip_space()
            yield from self._call(bare)
            yield from self.skip_space()
            comma = yield from self.accept(",")
        yield from self.expect("]")
        self.syntax()

    def _one_after_the_other(self, bare: bool) -> Reading[None]:
        char = "{"
        while char == "{":
            yield from self._call(bare)
            char = yield from self.skip_space()
            if char and char in self._form.separators:
                yield from self.expect(char)
                if (yield from self.skip_space()) != "{":
                    raise Malformed
                char = "{"

    def _call(self, bare: bool) -> Reading[None]:
        if bare and self._bare_begin and not (yield from self.coming(self._bare_begin)):
            raise Malformed
        yield from self.expect("{")
        name, arguments, streamed = "", "", False
        comma = ","
        while comma:
            key = yield from self._key(bare)
            if key in _NAMES and not name:
                name = yield from self._string()
            elif key in _ARGUMENTS and not arguments and not streamed:
                streamed = bool(name) and (yield from self._streamed(name))
                if not streamed and bare:
                    raise Malformed
                arguments = "" if streamed else (yield from self._whole_arguments())
            else:
                if bare and (yield from self.skip_space()) in ("{", "["):
                    raise Malformed
                yield from self.json_value()
            yield from self.skip_space()
            comma = yield from self.accept(",")
        if not streamed:
            if not name or (bare and name not in self._names):
                raise Malformed
            yield from self.expect("}")
            self.opened(name)
            self.arguments(arguments or "{}")
        elif not (yield from self.accept("}", *self._form.closers)):
            raise Malformed
        self.closed()

    def _key(self, bare: bool) -> Reading[str]:
        """A key and its colon; of a bare object it is found out early that it is none of a call's."""
        yield from self.skip_space()
        if bare:
            key = (yield from self.accept(*(f'"{known}"' for known in _BARE_KEYS))).strip('"')
            if not key:
                raise Malformed
        else:
            key = yield from self._string()
        yield from self.skip_space()
        yield from self.expect(":")
        return key

    def _string(self) -> Reading[str]:
        if (yield from self.skip_space()) != '"':
            raise Malformed
        if plain := self.there(_PLAIN_STRING):
            return plain[1:-1]
        return _decoded((yield from self.json_value()))

    def _streamed(self, name: str) -> Reading[bool]:
        """The call of this name and its arguments as they come, if they are an object as they should be."""
        if (yield from self.skip_space()) != "{":
            return False
        self.opened(name)
        yield from self.json_value(as_arguments=True)
        return True

    def _whole_arguments(self) -> Reading[str]:
        """Arguments whose name is still to come, or written as a string; empty for null."""
        text = yield from self.json_value()
        if text.startswith('"'):
            text = _decoded(text).strip()
        scanner = JsonScanner()
        if text.startswith("{") and scanner.scan(text)[0] == len(text) and scanner.done:
            return text
        if text not in ("", "null"):
            raise Malformed
        return ""


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A family of models that writes calls as JSON."""

    openers: tuple[str, ...]
    """Markers that come before a call or before all; one that ends in a bracket begins the list itself."""
    source: str
    layout: Layout
    """How calls are written exactly, where they are to be constrained."""
    closers: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    """Brackets that may begin calls without a marker."""
    separators: str = ""
    """Characters of which one may come between calls."""
    special_tokens: tuple[str, ...] = ()
    quoted: bool = True
    """A call's name is written as JSON."""
    reader: type[JsonCallReader] = JsonCallReader

    def parser(self, spec: ParserSpec) -> OutputParser:
        return self.reader(self, spec)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        bodies: dict[str, Part] = {}
        for tool in tools:
            name = json.dumps(tool.name, ensure_ascii=False) if self.quoted else tool.name
            check_read(self.parser(ParserSpec()), self.layout.call(name, "{}"), tool.name)
            bodies[name] = json_of(object_schema(tool))
        return self.layout.constraint(bodies, self.openers, required=required, parallel=parallel)


def _decoded(text: str) -> str:
    """A JSON string's value, which must be text."""
    value: str = json.loads(text)
    if _HALF_PAIR.search(value):
        raise Malformed
    return value
