"""Structural tags in llguidance's Lark, as far as calls of tools need them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmkit_grammars.limits import whitespace

Part = Mapping[str, Any]


def lark_of(source: str, json_options: Mapping[str, Any]) -> str:
    """``source`` has passed ``structural.checked``.

    :raises ValueError: a part of the tag has no form here.
    """
    writer = _Writer(json_options)
    start = writer.part(json.loads(source)["format"])
    return "\n".join([f"start: {start}", *writer.rules])


class _Writer:
    """Writes a format part by part; owns the rules that its parts need."""

    def __init__(self, json_options: Mapping[str, Any]) -> None:
        self.rules: list[str] = []
        self._json_options = json_options

    def part(self, part: Part) -> str:
        match part:
            case {"type": "const_string", "value": str(value)}:
                return _text(value)
            case {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": int(most)}:
                return self._schema(schema, most)
            case {"type": "sequence", "elements": [*elements]}:
                return " ".join(self.part(element) for element in elements)
            case {"type": "or", "elements": [*elements]}:
                return _either([self.part(element) for element in elements])
            case {"type": "tag", "begin": str(begin), "content": content, "end": str(end)}:
                return " ".join(filter(None, (_text(begin), self.part(content), _text(end))))
            case {"type": "tags_with_separator", "tags": [*tags], "separator": str(separator)}:
                return self._list(tags, separator, part)
            case {"type": "triggered_tags", "triggers": [str(trigger)], "tags": [*tags]} if trigger:
                return self._triggered(trigger, tags, part)
        raise ValueError(f"llguidance has no form for {part.get('type')!r} in this structural tag")

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
        last = f"LAST{len(self.rules)}"
        self.rules.append(f"{last}: /(?s:.+)/ & ~/(?s:.*){_exactly(trigger)}(?s:.*)/")
        if part.get("stop_after_first"):
            return f"{free} {rest}" if part.get("at_least_one") else f"({free} {rest} | {last})?"
        count = "+" if part.get("at_least_one") else "*"
        return f"({free} {rest}){count} {last}?"

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name


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
