"""Structural tags: free text in which certain marks begin constrained parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from llmkit_grammars import json_schema, regexes
from llmkit_grammars.limits import MAX_WHITESPACE
from llmkit_grammars.marks import Marks

MAX_DEPTH = 64
MAX_PARTS = 4096


def checked(source: str, honours: Callable[[json_schema.Schema], None], marks: Marks) -> str:
    """The same tag in xgrammar's present form, its schemas parsed, its whitespace bounded, its marks tokens.

    Takes the older form of vLLM, ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``, too.

    :param honours: raises ValueError for a schema that the backend would not honour.
    :raises ValueError: it is no structural tag, or a part of it cannot be honoured exactly.
    """
    try:
        tag = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the structural tag is no JSON: {error}") from None
    if not isinstance(tag, dict):
        raise ValueError("the structural tag must be an object")
    form = tag.get("format") if "structures" not in tag else _of_structures(tag)
    walker = _Walker(honours, marks)
    return json.dumps({"type": "structural_tag", "format": walker.part(form, 0)}, ensure_ascii=False)


def _of_structures(tag: Mapping[str, Any]) -> dict[str, Any]:
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise ValueError("structures must be a list of objects")
    tags = [
        {
            "type": "tag",
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", {})},
            "end": each.get("end", ""),
        }
        for each in structures
    ]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _Walker:
    """Copies a format part by part."""

    def __init__(self, honours: Callable[[json_schema.Schema], None], marks: Marks) -> None:
        self._honours = honours
        self._marks = marks
        self._seen = 0

    def part(self, part: Any, depth: int) -> Any:
        self._seen += 1
        if self._seen > MAX_PARTS or depth > MAX_DEPTH:
            raise ValueError(
                f"the structural tag has more than {MAX_PARTS} parts, or {MAX_DEPTH} within another"
            )
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError("every format in a structural tag is an object with a type")
        match part["type"]:
            case "json_schema" | "qwen_xml_parameter":
                return self._schema(part)
            case "regex":
                self._regex(part.get("pattern"))
            case "grammar":
                raise ValueError("a grammar within a structural tag cannot be bounded; give it as 'grammar'")
        return self._marks.written({word: self._held(word, held, depth) for word, held in part.items()})

    def _held(self, word: str, held: Any, depth: int) -> Any:
        if word == "content":
            return self.part(held, depth + 1)
        if word in ("elements", "tags") and isinstance(held, list):
            return [self.part(inner, depth + 1) for inner in held]
        return held

    def _schema(self, part: Mapping[str, Any]) -> dict[str, Any]:
        if part.get("style", "json") != "json" or part.get("any_order"):
            raise ValueError(
                "a structural tag's schema is honoured as JSON in order; leave out style and any_order"
            )
        schema = json_schema.parse(json.dumps(part.get("json_schema")))
        self._honours(schema)
        spaces = part.get("max_whitespace_cnt")
        most = min(spaces, MAX_WHITESPACE) if isinstance(spaces, int) and spaces > 0 else MAX_WHITESPACE
        return {**part, "json_schema": schema, "max_whitespace_cnt": most}

    @staticmethod
    def _regex(pattern: Any) -> None:
        if not isinstance(pattern, str):
            raise ValueError("a regex in a structural tag must be a string")
        regexes.check(pattern)
        beyond = regexes.beyond_xgrammar(pattern)
        if beyond is not None:
            raise ValueError(f"xgrammar reads {beyond} in an expression in its own way")
