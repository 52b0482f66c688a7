"""Structural tags in llguidance's Lark, as far as calls of tools need them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmkit_grammars.limits import whitespace
from llmkit_grammars.marks import NO_TEXT

Part = Mapping[str, Any]

_JSON_BEGINS = tuple('{["-0123456789tfn')
_IN_SLASHES = re.compile(r"\\.|[/\n]", re.DOTALL)
"""Of an expression: what is escaped, and what must be between slashes."""


def lark_of(source: str, json_options: Mapping[str, Any]) -> str:
    """``source`` has passed ``structural.checked``.

    :raises ValueError: a part of the tag has no form here.
    """
    writer = _Writer(json_options)
    start = writer.part(json.loads(source)["format"], bounded=True)
    return "\n".join([f"start: {start}", *writer.rules])


class _Writer:
    """Writes a format part by part; owns the rules that its parts need."""

    def __init__(self, json_options: Mapping[str, Any]) -> None:
        self.rules: list[str] = []
        self._texts: dict[str, str] = {}
        """Terminals of free text, by what is not spelt in them."""
        self._json_options = json_options

    def part(self, part: Part, *, bounded: bool = False) -> str:
        """``bounded``: what follows is a token or nothing, which ends any text."""
        match part:
            case {"type": "const_string", "value": str(value)}:
                return _text(value)
            case {"type": "token", "token": int(token_id)}:
                return f"<[{token_id}]>"
            case {"type": "any_text", "excludes": [*excludes]} if bounded:
                return f"{self._free(excludes)}?"
            case {"type": "star" | "optional" as kind, "content": content}:
                ends_on_token = bounded and (kind == "optional" or _on_token(content))
                return f"({self.part(content, bounded=ends_on_token)}){'*' if kind == 'star' else '?'}"
            case {"type": "regex", "pattern": str(pattern)}:
                return self._rule(f"/{_IN_SLASHES.sub(_spelt, pattern)}/")
            case {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": int(most)}:
                return self._schema(schema, most)
            case {"type": "sequence", "elements": [*elements]}:
                return self._sequence(elements, bounded)
            case {"type": "or", "elements": [*elements]}:
                _check_apart(elements)
                return _either([self.part(element, bounded=bounded) for element in elements])
            case {"type": "tag", "begin": str(begin), "content": content, "end": str(end)}:
                return " ".join(filter(None, (_text(begin), self.part(content), _text(end))))
            case {"type": "tags_with_separator", "tags": [*tags], "separator": str(separator)}:
                return self._list(tags, separator, part)
            case {"type": "triggered_tags", "triggers": [str(trigger)], "tags": [*tags]} if trigger:
                if not {*part.get("excludes", ())} - {NO_TEXT}:
                    return self._triggered(trigger, tags, part)
        raise ValueError(f"llguidance has no form for {part.get('type')!r} in this structural tag")

    def _sequence(self, elements: Sequence[Part], bounded: bool) -> str:
        written: list[str] = []
        for element in reversed(elements):
            written.append(self.part(element, bounded=bounded))
            bounded = _on_token(element) and (bounded or element.get("type") not in ("star", "optional"))
        return " ".join(filter(None, reversed(written)))

    def _free(self, excludes: Sequence[str]) -> str:
        """Text, at least a character, in which none of these is spelt."""
        held = "|".join(_exactly(text) for text in excludes if text != NO_TEXT)
        without = f" & ~/(?s:.*)({held})(?s:.*)/" if held else ""
        if without not in self._texts:
            self._texts[without] = f"TEXT{len(self._texts)}"
            self.rules.append(f"{self._texts[without]}: /(?s:.+)/{without}")
        return self._texts[without]

    def _schema(self, schema: Any, most: int) -> str:
        options = {"x-guidance": {**self._json_options, "whitespace_pattern": whitespace(most)}}
        held = {**schema, **options} if isinstance(schema, dict) else {"allOf": [schema], **options}
        return self._rule(f"%json {json.dumps(held)}")

    def _list(self, tags: Sequence[Part], separator: str, part: Part) -> str:
        each = self._rule(_either([self.part(tag) for tag in tags]))
        more = "" if part.get("stop_after_first") else f"({_text(separator)} {each})*"
        whole = " ".join(filter(None, (each, more)))
        return whole if part.get("at_least_one") else f"({whole})?"

    def _triggered(self, trigger: str, tags: Sequence[Part], part: Part) -> str:
        """Free text up to the trigger, then what is left of a tag; at the end text without the trigger."""
        rests = []
        for tag in tags:
            if not str(tag.get("begin", "")).startswith(trigger):
                raise ValueError(f"a tag does not begin with the trigger {trigger!r}")
            rests.append(self.part({**tag, "begin": tag["begin"].removeprefix(trigger)}))
        rest = self._rule(_either(rests))
        free = self._rule("/(?s:.*)/", f"[suffix={_text(trigger)}]")
        last = self._free([trigger])
        if part.get("stop_after_first"):
            return f"{free} {rest}" if part.get("at_least_one") else f"({free} {rest} | {last})?"
        count = "+" if part.get("at_least_one") else "*"
        return f"({free} {rest}){count} {last}?"

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name


def _check_apart(elements: Sequence[Part]) -> None:
    """:raises ValueError: JSON beside a text that begins alike, of which llguidance would see that alone."""
    if any(element.get("type") == "json_schema" for element in elements):
        for text in [text for element in elements for text in _beginnings(element)]:
            if text.startswith(_JSON_BEGINS):
                raise ValueError(f"llguidance takes no JSON beside {text!r:.40}, which begins as JSON does")


def _beginnings(part: Part) -> Iterator[str]:
    """Texts that it may begin with, as far as they are written out."""
    match part:
        case {"type": "const_string", "value": str(text)} | {"type": "tag", "begin": str(text)}:
            yield text
        case {"type": "sequence", "elements": [first, *_]}:
            yield from _beginnings(first)
        case {"type": "or", "elements": [*parts]} | {"type": "tags_with_separator", "tags": [*parts]}:
            for each in parts:
                yield from _beginnings(each)


def _on_token(part: Part) -> bool:
    """Whether all that it may begin with are tokens."""
    match part:
        case {"type": "token"}:
            return True
        case {"type": "sequence", "elements": [first, *_]}:
            return first.get("type") not in ("star", "optional") and _on_token(first)
        case {"type": "star" | "optional", "content": content}:
            return _on_token(content)
        case {"type": "or", "elements": [*elements]}:
            return all(map(_on_token, elements))
    return False


def _spelt(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(found[0], found[0])


def _either(parts: Sequence[str]) -> str:
    return f"({' | '.join(parts)})" if len(parts) != 1 else parts[0]


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _exactly(text: str) -> str:
    """A regular expression of this text alone."""
    return "".join(
        character if character.isalnum() or ord(character) > 0x7F else f"\\x{ord(character):02X}"
        for character in text
    )
