"""Formats that write ``name{key:value}`` with texts between quotes that are tokens: nothing escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool, held_back
from llmkit.parsers.markup import plain
from llmkit.parsers.reading import CallReader, Malformed, Reading
from llmkit.parsers.schemas import (
    ANY,
    OTHERS,
    STRING,
    Kinds,
    Signatures,
    ValueWriter,
    held_parameters,
    kinds_of,
    literal_of,
    members_of,
    without_strings,
)
from llmkit.parsers.tags import (
    Layout,
    Part,
    check_read,
    json_of,
    key_refused,
    members,
    one_of,
    optional,
    regex,
    sequence,
    tag,
)
from llmkit.text import listing

MAX_DEPTH = 64
"""Of brackets within arguments; what nests deeper is no call."""
_NAME = re.compile(r"[\w.:/-]*")
_KEY = re.compile(r"[^\s:,{}\[\]<>\"]*")
_BARE = re.compile(r"[^,{}\[\]<]*")


@dataclass(frozen=True, slots=True)
class Quoted:
    """One format: its markers."""

    opener: str
    """Up to a call's name."""
    closer: str
    quote: str
    """On both sides of a text."""
    special_tokens: Sequence[str]
    source: str

    @property
    def openers(self) -> Sequence[str]:
        return (self.opener,)

    def parser(self, spec: ParserSpec) -> OutputParser:
        return QuotedReader(self, spec.tools)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        layout = Layout(self.opener + "{name}{", "}" + self.closer)
        for tool in tools:
            check_read(self.parser(ParserSpec()), layout.call(tool.name), tool.name)
        bodies = {tool.name: _members(self.quote, *held_parameters(tool), tool) for tool in tools}
        return layout.constraint(bodies, self.openers, required=required, parallel=parallel)


_CONTAINERS = frozenset({"object", "array"})
_HELD = frozenset({"type", "properties", "required", "items", "title", "description", "default", "examples"})
"""Words of a schema of objects and lists that a constraint keeps to, or that say nothing of the value."""
_FREE_DEPTH = 3
"""Of brackets in an object or list without a schema of its own."""
_SCALAR = r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"


class QuotedReader(CallReader):
    """Texts go out as they come, other values once they are whole, typed by the tool's schema."""

    def __init__(self, form: Quoted, tools: Sequence[Tool]) -> None:
        self._form = form
        self._signatures = Signatures(tools)
        super().__init__(form.openers)

    def read_calls(self, opener: str) -> Reading[None]:
        name = yield from self.run(_NAME)
        yield from self.skip_space()
        if not name or not (yield from self.accept("{")):
            raise Malformed
        self.opened(name)
        yield from self._object(self._signatures.of(name).kinds, 1)
        self.closed()
        yield from self.skip_space()
        if not (yield from self.accept(self._form.closer)):
            self.unread()

    def _object(self, kinds: Callable[[str], Kinds], depth: int) -> Reading[None]:
        """What follows the brace that opens it."""
        self.arguments("{")
        yield from self._skip()
        comma = "" if (yield from self.accept("}")) else ","
        while comma:
            key = yield from self._key()
            self.arguments(json.dumps(key, ensure_ascii=False) + ": ")
            yield from self._value(kinds(key), depth)
            comma = yield from self._comma("}")
        self.arguments("}")

    def _list(self, depth: int) -> Reading[None]:
        self.arguments("[")
        yield from self._skip()
        comma = "" if (yield from self.accept("]")) else ","
        while comma:
            yield from self._value(ANY, depth)
            comma = yield from self._comma("]")
        self.arguments("]")

    def _key(self) -> Reading[str]:
        pieces: list[str] = []
        if (yield from self.accept(self._form.quote)):
            yield from self._quoted(pieces.append)
        else:
            pieces.append((yield from self.run(_KEY)))
        yield from self._skip()
        yield from self.expect(":")
        return "".join(pieces)

    def _value(self, kinds: Kinds, depth: int) -> Reading[None]:
        yield from self._skip()
        if depth > MAX_DEPTH:
            raise Malformed
        opener = yield from self.accept(self._form.quote, "{", "[")
        if opener == "{":
            yield from self._object(lambda _: ANY, depth + 1)
        elif opener == "[":
            yield from self._list(depth + 1)
        elif opener:
            writer = ValueWriter(STRING if "string" in kinds else kinds)
            yield from self._quoted(lambda text: self.arguments(writer.feed(text)))
            self.arguments(writer.finish())
        else:
            bare = (yield from self.run(_BARE)).strip()
            yield from self._skip()
            if not bare:
                raise Malformed
            self.arguments(literal_of(bare, kinds & OTHERS) or json.dumps(bare, ensure_ascii=False))

    def _comma(self, closer: str) -> Reading[str]:
        """Whether another one follows, else what closes them all."""
        yield from self._skip()
        if (yield from self.accept(closer)):
            return ""
        yield from self.expect(",")
        self.arguments(", ")
        yield from self._skip()
        return ","

    def _quoted(self, take: Callable[[str], None]) -> Reading[None]:
        """What stands before the closing quote, as it comes."""
        quote = self._form.quote
        while True:
            end = self._text.find(quote, self._at)
            if end < 0:
                tail = max(self._at, len(self._text) - len(quote))
                certain = len(self._text) - held_back(self._text[tail:], [quote])
            else:
                certain = end
            if certain > self._at:
                take(self._take(certain - self._at))
            if end >= 0:
                self._take(len(quote))
                return
            if self._ended:
                self._give_up()
            yield

    def _skip(self) -> Reading[None]:
        if not (yield from self.skip_space()):
            self._give_up()

    def _give_up(self) -> NoReturn:
        """The end within a call: what is left of it stands for no value yet."""
        self._take(len(self._text) - self._at)
        self.syntax()
        raise Malformed


# ---- what the model may be made to write ----


def _members(quote: str, properties: Mapping[str, Any], needed: frozenset[str], tool: Tool) -> Part:
    """An object's inside."""
    for key in properties:
        if not _KEY.fullmatch(key):
            raise key_refused(key, tool.name)
    values = {key: _any_of(quote, key, schema, tool) for key, schema in properties.items()}
    return members(values, needed, ":", ",")


def _any_of(quote: str, key: str, schema: Any, tool: Tool) -> Part:
    kinds = kinds_of(schema, tool.parameters)
    containers, scalars = kinds & _CONTAINERS, kinds & OTHERS - _CONTAINERS
    said = schema if isinstance(schema, dict) else {}
    choices = []
    if "string" in kinds:
        choices.append(tag(quote, plain(key, schema, tool, [quote]), quote))
    if containers:
        _check_held(key, said, tool)
    if "object" in containers and "properties" in said:
        choices.append(tag("{", _members(quote, *members_of(said, tool), tool), "}"))
        containers -= {"object"}
    if "array" in containers and "items" in said:
        item = _any_of(quote, key, said["items"], tool)
        more = {"type": "star", "content": tag(",", item, "")}
        choices.append(tag("[", optional(sequence([item, more])), "]"))
        containers -= {"array"}
    choices += [regex(_any_container(quote, kind)) for kind in sorted(containers)]
    if scalars:
        alone = (
            without_strings(said, tool.parameters) if not kinds & _CONTAINERS else {"type": sorted(scalars)}
        )
        choices.append(json_of(alone, tool.parameters))
    return one_of(choices)


def _check_held(key: str, schema: Mapping[str, Any], tool: Tool) -> None:
    """:raises ValueError: the tool is strict, and what its schema says of an object or list is not held."""
    beyond = [word for word in schema if word not in _HELD and schema[word] is not False]
    if tool.strict and beyond:
        raise ValueError(
            f"strict tool {tool.name!r} has {beyond[0]!r} on parameter {key!r}: of objects and arrays this "
            f"format can hold {listing(sorted(_HELD))} only"
        )


def _any_container(quote: str, kind: str) -> str:
    """Expression of any object or list."""
    first, second = quote[0], quote[1]
    mark = re.escape(quote)
    simple = rf"{mark}([^{first}]|{first}[^{first}{second}])*{mark}|{_SCALAR}"
    value = f"({simple})"
    for _ in range(_FREE_DEPTH - 1):
        value = f"({simple}|{_container('object', value)}|{_container('array', value)})"
    return _container(kind, value)


def _container(kind: str, value: str) -> str:
    if kind == "array":
        return rf"\[({value}(,{value})*)?\]"
    member = rf"[A-Za-z_][A-Za-z0-9_-]*:{value}"
    return rf"\{{({member}(,{member})*)?\}}"
