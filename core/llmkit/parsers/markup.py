"""The family with a tag for each argument; the type of a value is what the tool's schema says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool
from llmkit.parsers.scanning import Head, Machine, Marks, Place, matched, may_begin
from llmkit.parsers.schemas import (
    ANY,
    OTHERS,
    STRING,
    Signatures,
    ValueWriter,
    alternatives,
    held_parameters,
    kinds_of,
    options_of,
    text_is_told,
    without_strings,
)
from llmkit.parsers.tags import (
    Layout,
    Part,
    any_text,
    check_read,
    json_of,
    key_refused,
    one_of,
    optional,
    sequence,
    tag,
    text_of,
)

_UNHELD = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True)
class Markup:
    """One format: its tags, and how a constraint writes them."""

    source: str
    openers: Sequence[str]
    places: Sequence[Place]
    key: Head
    """From the tag of an argument to where its value begins: group 1 is its name. Group 2, where the format
    writes it, tells whether the value is a string: ``true`` or ``false``."""
    value_ends: Sequence[str]
    call_ends: Sequence[Head]
    newline: bool = False
    """A newline after the opening tag of a value is not part of it."""
    special_tokens: Sequence[str] = ()
    layout: Layout = field(kw_only=True)
    key_begin: str = field(kw_only=True)
    """An argument's tag as the model is made to write it, with ``{key}`` and perhaps ``{is_string}``."""
    after_value: str = field(kw_only=True)
    """What it then writes behind a value's end."""

    def parser(self, spec: ParserSpec) -> OutputParser:
        return MarkupParser(self, spec.tools)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        for tool in tools:
            check_read(self.parser(ParserSpec()), self.layout.call(tool.name), tool.name)
        return self.layout.constraint(
            {tool.name: self._body(tool) for tool in tools},
            self.openers,
            required=required,
            parallel=parallel,
        )

    def _body(self, tool: Tool) -> Part:
        """All parameters in the schema's order; those that are not required may be left out."""
        properties, needed = held_parameters(tool)
        parts = []
        for key, schema in properties.items():
            part = self._argument(key, schema, tool)
            parts.append(part if key in needed else optional(part))
        return sequence(parts)

    def _argument(self, key: str, schema: Any, tool: Tool) -> Part:
        kinds = kinds_of(schema, tool.parameters)
        written = {
            kind: self.key_begin.replace("{is_string}", kind).replace("{key}", key)
            for kind in ("true", "false")
        }
        found = self.key.match(written["true"], 0)
        if found is None or found[1] != key or key != key.strip():
            raise key_refused(key, tool.name)
        end = self.value_ends[0] + self.after_value
        if tool.strict and self.key.groups == 1 and not text_is_told(schema, tool.parameters):
            raise ValueError(
                f"strict tool {tool.name!r:.100}: parameter {key!r:.100} may be text or something else, which"
                " this format does not tell apart; beside text it can hold types only"
            )
        choices = []
        if "string" in kinds:
            content = plain(key, schema, tool, self.value_ends)
            choices.append(tag(written["true"], content, end))
        if kinds & OTHERS and kinds != ANY:
            others = json_of(without_strings(schema, tool.parameters), tool.parameters)
            choices.append(tag(written["false"], others, end))
        return one_of(choices)


def plain(key: str, schema: Any, tool: Tool, ends: Sequence[str]) -> Part:
    """A string as it is, not as JSON, up to one of ``ends``."""
    found: list[str] = []
    for each in alternatives(schema, tool.parameters):
        options = options_of(each)
        if options is not None:
            found += [option for option in options if isinstance(option, str)]
        elif "string" in kinds_of(each, tool.parameters):
            _check_unheld(key, each, tool)
            return any_text(ends)
    texts = [text_of(text) for text in found if not any(end in text for end in ends)]
    if found and not texts:
        raise ValueError(f"tool {tool.name!r:.100}: this format can write no value of {key!r:.100}")
    return one_of(texts) if texts else any_text(ends)


def _check_unheld(key: str, schema: Any, tool: Tool) -> None:
    """:raises ValueError: the tool is strict, and the schema of a text says what cannot be held."""
    if not tool.strict or not isinstance(schema, dict):
        return
    for word in [word for word in _UNHELD if word in schema]:
        raise ValueError(
            f"strict tool {tool.name!r} has {word!r} on parameter {key!r}, which this format writes as "
            "plain text: of strings it can hold enum and const only"
        )


class MarkupParser(Machine):
    """Prose, then a call's name, then its arguments one after the other, then prose again."""

    def __init__(self, markup: Markup, tools: Sequence[Tool]) -> None:
        super().__init__(markup.openers, markup.places)
        self._markup = markup
        self._signatures = Signatures(tools)
        self._value_ends = Marks(*markup.value_ends)
        self._signature = self._signatures.of("")
        self._value = ValueWriter(ANY)
        self._value_begins = False
        self._keys = 0

    def _begin(self, head: re.Match[str]) -> bool:
        name = head[1].strip()
        self._open(name)
        self._signature, self._keys = self._signatures.of(name), 0
        return self._go(self._body, head.end())

    def _body(self) -> bool:
        self._skip_space()
        if key := self._markup.key.match(self._text, self._at):
            return self._argument(key)
        if end := matched(self._markup.call_ends, self._text, self._at):
            return self._complete(self._behind, end.end())
        if end := matched(self._place.ends, self._text, self._at):
            return self._complete(self._prose, end.end())
        if may_begin((self._markup.key, *self._markup.call_ends, *self._place.ends), self._text, self._at):
            return False
        return self._go(self._prose, self._at)  # no call as the format has it: the rest is text

    def _complete(self, state: Callable[[], bool], at: int) -> bool:
        self._arguments("}" if self._keys else "{}")
        self._close()
        return self._go(state, at)

    def _argument(self, key: re.Match[str]) -> bool:
        self._arguments(
            ("{" if not self._keys else ", ") + json.dumps(key[1].strip(), ensure_ascii=False) + ": "
        )
        self._keys += 1
        kinds = self._signature.kinds(key[1].strip())
        if self._markup.key.groups > 1:
            kinds = STRING if key[2] == "true" else OTHERS
        self._value, self._value_begins = ValueWriter(kinds), self._markup.newline
        return self._go(self._in_value, key.end())

    def _in_value(self) -> bool:
        if self._value_begins and self._at < len(self._text):
            self._value_begins = False
            self._at += self._text[self._at] == "\n"
        at, mark = self._value_ends.find(self._text, self._at)
        self._arguments(self._value.feed(self._text[self._at : at]))
        self._at = at
        if not mark:
            return False
        self._arguments(self._value.finish())
        return self._go(self._body, at + len(mark))
