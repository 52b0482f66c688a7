"""Structural tags: free text in which certain marks begin constrained parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from llmkit.contracts import listing
from llmkit_grammars import json_schema, regexes
from llmkit_grammars.limits import MAX_WHITESPACE, shown
from llmkit_grammars.marks import Marks

MAX_DEPTH = 64
MAX_PARTS = 4096
_SCHEMA, _CONTENT, _LIST = (dict, bool), {"content": (dict,)}, (list,)
_FORMATS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "const_string": {"value": (str,)},
    "json_schema": {"json_schema": _SCHEMA},
    "qwen_xml_parameter": {"json_schema": _SCHEMA},
    "any_text": {},
    "token": {"token": (int, str)},
    "exclude_token": {},
    "any_tokens": {},
    "grammar": {},
    "regex": {"pattern": (str,)},
    "sequence": {"elements": _LIST},
    "or": {"elements": _LIST},
    "tag": {"begin": (str, dict), "content": (dict,), "end": (str, list, dict)},
    "triggered_tags": {"triggers": _LIST, "tags": _LIST},
    "token_triggered_tags": {"trigger_tokens": _LIST, "tags": _LIST},
    "tags_with_separator": {"tags": _LIST, "separator": (str,)},
    "optional": _CONTENT,
    "plus": _CONTENT,
    "star": _CONTENT,
    "repeat": {"min": (int,), "max": (int,), **_CONTENT},
    "dispatch": {"rules": _LIST},
    "token_dispatch": {"rules": _LIST},
}
"""Every format and what it needs."""
_CALLED = {str: "a string", int: "an integer", list: "a list", dict: "an object", bool: "true or false"}


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
    written = _Walker(honours, marks).part(form, "format", 0)
    return json.dumps({"type": "structural_tag", "format": written}, ensure_ascii=False)


def _of_structures(tag: Mapping[str, Any]) -> dict[str, Any]:
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise ValueError(f"structures is {shown(structures)}; it must be a list of objects")
    if not isinstance(triggers, list):
        raise ValueError(f"triggers is {shown(triggers)}; it must be a list of strings")
    for place, each in enumerate(structures):
        for word in ("begin", "end"):
            if not isinstance(each.get(word, ""), str) or (word == "begin" and word not in each):
                raise ValueError(
                    f"structures[{place}].{word} is {shown(each.get(word))}; it must be a string"
                )
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


def _check_fields(part: Mapping[str, Any], where: str) -> None:
    """:raises ValueError: its type is unknown, or a field that it needs is missing or of another kind."""
    needed = _FORMATS.get(part["type"])
    if needed is None:
        raise ValueError(f"{where}.type is {shown(part['type'])}; it may be {listing(_FORMATS)}")
    for name, kinds in needed.items():
        if type(part.get(name)) not in kinds:
            wanted = " or ".join(_CALLED[kind] for kind in kinds)
            raise ValueError(f"{where}.{name} is {shown(part.get(name))}; it must be {wanted}")


class _Walker:
    """Copies a format part by part."""

    def __init__(self, honours: Callable[[json_schema.Schema], None], marks: Marks) -> None:
        self._honours = honours
        self._marks = marks
        self._seen = 0

    def part(self, part: Any, where: str, depth: int) -> Any:
        self._seen += 1
        if self._seen > MAX_PARTS or depth > MAX_DEPTH:
            raise ValueError(
                f"the structural tag has more than {MAX_PARTS} parts, or {MAX_DEPTH} within another"
            )
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"{where} is {shown(part)}; every format is an object with a type")
        _check_fields(part, where)
        match part["type"]:
            case "json_schema" | "qwen_xml_parameter":
                return self._schema(part, where)
            case "regex":
                self._regex(part["pattern"], where)
            case "grammar":
                raise ValueError(f"{where}: a grammar within it cannot be bounded; give it as 'grammar'")
        written = {word: self._held(word, held, f"{where}.{word}", depth) for word, held in part.items()}
        return self._marks.written(written)

    def _held(self, word: str, held: Any, where: str, depth: int) -> Any:
        if word == "content":
            return self.part(held, where, depth + 1)
        if word in ("elements", "tags"):
            return [self.part(inner, f"{where}[{place}]", depth + 1) for place, inner in enumerate(held)]
        if word == "rules":
            return [self._rule(rule, f"{where}[{place}]", depth + 1) for place, rule in enumerate(held)]
        return held

    def _rule(self, rule: Any, where: str, depth: int) -> list[Any]:
        if not isinstance(rule, list) or len(rule) != 2:
            raise ValueError(f"{where} is {shown(rule)}; it must be a list of a trigger and a format")
        return [rule[0], self.part(rule[1], f"{where}[1]", depth)]

    def _schema(self, part: Mapping[str, Any], where: str) -> dict[str, Any]:
        if part.get("style", "json") != "json" or part.get("any_order"):
            raise ValueError(
                "a structural tag's schema is honoured as JSON in order; leave out style and any_order"
            )
        try:
            schema = json_schema.parse(json.dumps(part["json_schema"]))
        except ValueError as error:
            raise ValueError(f"{where}.json_schema: {error}") from None
        self._honours(schema)
        spaces = part.get("max_whitespace_cnt")
        most = min(spaces, MAX_WHITESPACE) if isinstance(spaces, int) and spaces > 0 else MAX_WHITESPACE
        return {**part, "json_schema": schema, "max_whitespace_cnt": most}

    @staticmethod
    def _regex(pattern: str, where: str) -> None:
        try:
            regexes.check(pattern)
        except ValueError as error:
            raise ValueError(f"{where}.pattern: {error}") from None
        beyond = regexes.beyond_xgrammar(pattern)
        if beyond is not None:
            raise ValueError(f"xgrammar reads {beyond} in an expression in its own way")
