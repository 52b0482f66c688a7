"""Structural tags: what a model may write, as nested parts."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmkit.contracts import OutputParser, StructuredOutput, ToolCallOpened
from llmkit.types import MAX_GRAMMAR_CHARS

Part = dict[str, Any]

_DEFINITIONS = ("$defs", "definitions")
_NUMBER = "[0-9]{1,4}"
MAX_OPTIONAL = 128
"""Members of which any may be the first: each is written once for each that comes before it."""
_MAX_WHITESPACE = 1
"""In a row between two JSON tokens: what templates write; with more of it a small model fills its answer."""


@dataclass(frozen=True)
class Layout:
    """How a format writes calls one after the other, when it is made to write them.

    In what begins a call ``{name}`` stands for its name, and ``{number}``, before or behind that, for any.
    """

    call_begin: str
    call_end: str
    separator: str = ""
    sections: Sequence[tuple[str, str]] = ()
    """What stands before the first call and behind the last: how it is written, then how it may be too."""
    other_begins: Sequence[str] = ()
    """As ``call_begin``, written as well."""
    lead: str = ""
    """What may stand before the first call."""
    beside: Sequence[str] = ()
    """Marks of the format that text without calls has too, so that they open none by themselves."""

    def call(self, name: str, body: str = "") -> str:
        """One as it is written, from the section's beginning on."""
        before = self.sections[0][0] if self.sections else ""
        return before + "0".join(_begin(self.call_begin, name)) + body + self.call_end

    def constraint(
        self, bodies: Mapping[str, Part], openers: Sequence[str], *, required: bool, parallel: bool
    ) -> StructuredOutput:
        """Calls whose inner parts are ``bodies``, by names as they are written; ``openers`` are all of the
        format.
        """
        if not bodies:
            raise ValueError("there are no tools to call")
        begins = (self.call_begin, *self.other_begins)
        calls = [self._call(begin, name, body) for begin in begins for name, body in bodies.items()]
        several: Part = {
            "type": "tags_with_separator",
            "tags": calls,
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": not parallel,
        }
        blocks = [tag(begin, several, end) for begin, end in self.sections] or calls
        if required:
            form = blocks[0] if self.sections else several
            return structural(sequence([optional(text_of(self.lead)), form]) if self.lead else form)
        fixed = [begin for begin, _ in self.sections] or [_begin(begin, "{name}")[0] for begin in begins]
        fixed = [begin.partition("{name}")[0] for begin in fixed]
        return structural(in_text(blocks, fixed, () if self.beside else openers, self.beside, parallel))

    def _call(self, begin: str, name: str, body: Part) -> Part:
        before, *behind_number = _begin(begin, name)
        for text in behind_number:
            body = sequence([regex(_NUMBER), text_of(text), body])
        return tag(before, body, self.call_end)


def _begin(text: str, name: str) -> list[str]:
    """What begins a call, in two parts where there is a number between them."""
    return [part.replace("{name}", name) for part in text.split("{number}", 1)]


def in_text(
    calls: Sequence[Part],
    begins: Sequence[str],
    openers: Sequence[str],
    beside: Sequence[str] = (),
    parallel: bool = True,
) -> Part:
    """Text in which calls stand that begin so; nothing else that opens a call is in it.

    The opener alone is where a call begins: what a model may leave out behind it must not hide the call.
    """
    triggers = {max((o for o in openers if begin.startswith(o)), key=len, default=begin) for begin in begins}
    others = [opener for opener in openers if len(opener) > 1 and opener not in triggers]
    return {
        "type": "triggered_tags",
        "triggers": sorted(triggers),
        "tags": list(calls),
        "excludes": others,
        "beside": list(beside),
        "stop_after_first": not parallel,
    }


def members(values: Mapping[str, Part], needed: Container[str], equals: str, comma: str) -> Part:
    """Properties with their values in their order, the required ones first; the rest may be left out.

    :raises ValueError: which comes first is open among too many.
    """
    first = [key for key in values if key in needed]
    rest = [key for key in values if key not in needed]
    behind = {key: tag(comma + key + equals, value, "") for key, value in values.items()}
    later = [optional(behind[key]) for key in rest]
    if first:
        begin = tag(first[0] + equals, values[first[0]], "")
        return sequence([begin, *(behind[key] for key in first[1:]), *later])
    if len(rest) > MAX_OPTIONAL:
        raise ValueError(
            f"an object has {len(rest)} optional members and none that is required; this format can hold"
            f" {MAX_OPTIONAL} of these"
        )
    ways = [
        sequence([tag(key + equals, values[key], ""), *later[place + 1 :]]) for place, key in enumerate(rest)
    ]
    return one_of([text_of(""), *ways])


def check_read(parser: OutputParser, written: str, name: str) -> None:
    """:raises ValueError: the parser reads no call of this name in it, so that none may be asked for."""
    opened = [delta.name for delta in parser.feed(written) if isinstance(delta, ToolCallOpened)]
    if opened != [name]:
        raise ValueError(f"tool {name!r:.100} has a name that this format cannot write")


def key_refused(key: str, name: str) -> ValueError:
    """For a parameter whose name the format has no way to write."""
    return ValueError(f"parameter {key!r:.100} of tool {name!r:.100}: this format cannot write such a name")


def structural(part: Part) -> StructuredOutput:
    """:raises ValueError: it is longer than the source of a grammar may be, to which small tools can come."""
    pieces, length = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode({"type": "structural_tag", "format": part}):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_GRAMMAR_CHARS:
            raise ValueError(
                f"calls of these tools are described by more than the {MAX_GRAMMAR_CHARS} characters"
                " of a grammar; give fewer tools or smaller schemas"
            )
    return StructuredOutput(kind="structural_tag", source="".join(pieces))


def tag(begin: str, content: Part, end: str) -> Part:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def text_of(value: str) -> Part:
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Part:
    return {"type": "regex", "pattern": pattern}


def any_text(excludes: Sequence[str] = ()) -> Part:
    return {"type": "any_text", "excludes": list(excludes)}


def optional(part: Part) -> Part:
    return {"type": "optional", "content": part}


def sequence(parts: Sequence[Part]) -> Part:
    if not parts:
        return text_of("")
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def one_of(parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": list(parts)}


def json_of(schema: Any, root: Mapping[str, Any] | None = None) -> Part:
    """JSON that fits a schema, which may refer to definitions of ``root``."""
    inner = schema
    if root is not None and isinstance(schema, dict):
        inner = {**schema, **{word: root[word] for word in _DEFINITIONS if word in root}}
    return {"type": "json_schema", "json_schema": inner, "max_whitespace_cnt": _MAX_WHITESPACE}
