"""What a tool's schema says of values that a format writes without their type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmkit.contracts import Tool
from llmkit.parsers.python_values import as_json, json_inside

Kinds = frozenset[str]

ANY: Kinds = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING: Kinds = frozenset({"string"})
OTHERS = ANY - STRING
_ALIASES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array"}
_ALIASES |= {"dict": "object", "none": "null"}
_MAX_DEPTH = 32
_NUMERIC = re.compile(r"[\d.eE+-]{0,64}")
_BRACKETS = {"{": "object", "[": "array"}
_MAX_BLANK = 256
_WORDS = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}


_OF_PARAMETERS = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})


def held_parameters(tool: Tool) -> tuple[Mapping[str, Any], frozenset[str]]:
    """As :func:`members_of`, for formats that write parameters one by one, each after its own schema.

    :raises ValueError: also where the tool is strict, and its schema says more of them all than which must
        be there.
    """
    schema = _followed(object_schema(tool), tool.parameters)
    if not isinstance(schema, dict):
        raise ValueError(f"tool {tool.name!r:.100}: its schema refers to none")
    for word in tool.parameters.keys() - _OF_PARAMETERS - _NOTES if tool.strict else ():
        raise ValueError(
            f"strict tool {tool.name!r:.100} has {word!r} beside its parameters: of the whole this format can"
            " hold properties and required only"
        )
    properties, needed = members_of(schema, tool)
    for key in sorted(needed - schema.get("properties", {}).keys()) if tool.strict else ():
        raise ValueError(f"strict tool {tool.name!r:.100} requires {key!r:.100}, which its properties lack")
    return properties, needed


def object_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object whether it says so or not.

    :raises ValueError: it says that they are something else.
    """
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kinds = tool.parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ValueError(f"tool {tool.name!r:.100} has type {kinds!r:.60}; its arguments are an object")
    return {**tool.parameters, "type": "object"}


def members_of(schema: Mapping[str, Any], tool: Tool) -> tuple[Mapping[str, Any], frozenset[str]]:
    """An object's properties, each with its schema, and the names of those that must be there.

    :raises ValueError: the schema is none, or what it requires it forbids too.
    """
    properties, needed = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise ValueError(f"tool {tool.name!r:.100}: properties in its schema must be an object")
    if not isinstance(needed, list) or not all(isinstance(key, str) for key in needed):
        raise ValueError(f"tool {tool.name!r:.100}: required in its schema must be a list of texts")
    others = schema.get("additionalProperties", True)
    unlisted = [key for key in needed if key not in properties]
    if unlisted and others is False and not tool.strict:
        raise ValueError(f"tool {tool.name!r:.100}: its schema requires and forbids {unlisted[0]!r:.100}")
    return {**properties, **dict.fromkeys(unlisted, others)}, frozenset(needed)


class Signatures:
    """Of the tools that an answer may call."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._made = {tool.name: Signature(tool.parameters) for tool in tools}

    def of(self, name: str) -> Signature:
        """One that says nothing of its parameters if there is no tool of that name."""
        return self._made.get(name) or Signature({})


class Signature:
    """One tool's parameters; what the schema says of them is looked up once for each."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        followed = _followed(schema, schema)
        said: Mapping[str, Any] = followed if isinstance(followed, dict) else {}
        properties = said.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._others = said.get("additionalProperties")
        self._known: dict[str | None, Kinds] = {}

    def kinds(self, key: str) -> Kinds:
        """What the value of a parameter may be; anything if the schema does not say."""
        listed = key if key in self._properties else None
        if listed not in self._known:
            schema = self._others if listed is None else self._properties[listed]
            self._known[listed] = kinds_of(schema, self._root)
        return self._known[listed]


def kinds_of(schema: Any, root: Mapping[str, Any]) -> Kinds:
    """JSON's types that fit a schema, read through references and unions."""
    return _kinds(schema, root, {})


def _kinds(schema: Any, root: Mapping[str, Any], known: dict[str, Kinds], depth: int = 0) -> Kinds:
    """``known``: those of references, each looked up once; one within itself says nothing."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    kinds = ANY
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = ANY
            known[reference] = _kinds(_referred(reference, root), root, known, depth + 1)
        kinds &= known[reference]
    if "type" in schema:
        kinds &= _named(schema["type"])
    if isinstance(schema.get("enum"), list):
        kinds &= frozenset().union(*map(_kinds_of_value, schema["enum"]))
    if "const" in schema:
        kinds &= _kinds_of_value(schema["const"])
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            kinds &= frozenset().union(*(_kinds(each, root, known, depth + 1) for each in schema[word]))
    if isinstance(schema.get("allOf"), list):
        for each in schema["allOf"]:
            kinds &= _kinds(each, root, known, depth + 1)
    if schema.get("nullable") is True:
        kinds |= {"null"}
    if kinds == ANY and "properties" in schema:
        return frozenset({"object"})
    if kinds == ANY and "items" in schema:
        return frozenset({"array"})
    return kinds or ANY


def alternatives(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """The schemas of which a value fits one, as far as references and unions say nothing else."""
    return list(_alternatives(schema, root, set()))


def _alternatives(schema: Any, root: Mapping[str, Any], seen: set[str], depth: int = 0) -> Iterator[Any]:
    said = schema.keys() - _NOTES if isinstance(schema, dict) and depth <= _MAX_DEPTH else set()
    if said == {"$ref"} and isinstance(schema["$ref"], str):
        if schema["$ref"] not in seen:
            seen.add(schema["$ref"])
            yield from _alternatives(_referred(schema["$ref"], root), root, seen, depth + 1)
        return
    for word in ("anyOf", "oneOf", "allOf"):
        each = schema[word] if said == {word} else None
        if isinstance(each, list) and each and (word != "allOf" or len(each) == 1):
            for one in each:
                yield from _alternatives(one, root, seen, depth + 1)
            return
    yield schema


def options_of(schema: Any) -> list[Any] | None:
    """The values that a schema lists, None if it lists none."""
    if not isinstance(schema, dict):
        return None
    options = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return options if isinstance(options, list) else None


def text_is_told(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether plain text of this schema fits it even where it looks like another type and is read as that."""
    kinds = kinds_of(schema, root)
    if "string" not in kinds or not kinds & OTHERS:
        return True
    told = True
    for each in alternatives(schema, root):
        options = options_of(each)
        if options is not None:
            told &= not any(isinstance(text, str) and literal_of(text, kinds & OTHERS) for text in options)
        elif kinds_of(each, root) != STRING:
            told &= not isinstance(each, dict) or not each.keys() - _NOTES - {"type", "nullable"}
    return told


def without_strings(schema: Any, root: Mapping[str, Any]) -> Any:
    """The same schema for what is no string."""
    others = [each for each in alternatives(schema, root) if kinds_of(each, root) != STRING]
    kept = [_without_strings(each) for each in others]
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def _without_strings(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept = dict(schema)
    if isinstance(schema.get("type"), list):
        kept["type"] = [name for name in schema["type"] if name != "string"]
    if isinstance(schema.get("enum"), list):
        kept["enum"] = [value for value in schema["enum"] if not isinstance(value, str)]
    return kept


class ValueWriter:
    """One value as JSON: a string as it arrives, anything else once it is whole.

    What fits no type that the schema allows is a string: the arguments are JSON whatever the model wrote.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._pieces: list[str] = []
        self._first = ""  # character that is not blank
        self._is_string = False

    def feed(self, text: str) -> str:
        if not text:
            return ""
        if self._is_string:
            return json_inside(text)
        self._pieces.append(text)
        self._first = self._first or text.lstrip()[:1]
        if "string" not in self._kinds or _BRACKETS.get(self._first) in self._kinds:
            return ""  # for a bracket, its end decides
        raw = "".join(self._pieces)
        if _may_become(raw, self._kinds - STRING):
            return ""
        self._is_string = True
        return '"' + json_inside(raw)

    def finish(self) -> str:
        if self._is_string:
            return '"'
        raw = "".join(self._pieces)
        return literal_of(raw, self._kinds - STRING) or f'"{json_inside(raw)}"'


def literal_of(raw: str, kinds: Kinds) -> str | None:
    """The JSON of a text that stands for a value of one of these types, which are not string."""
    text = raw.strip()
    if not text:
        return None
    for candidate in (text, as_json(text)):
        if candidate is not None and _kind_of_json(candidate) & kinds:
            return candidate
    return None


def _may_become(raw: str, kinds: Kinds) -> bool:
    text = raw.lstrip()
    if not text:
        return bool(kinds) and len(raw) <= _MAX_BLANK
    if text[0] in _BRACKETS:
        return _BRACKETS[text[0]] in kinds
    text = text.rstrip()
    if kinds & {"integer", "number"} and _NUMERIC.fullmatch(text):
        return True
    return any(word.startswith(text) for kind, words in _WORDS.items() if kind in kinds for word in words)


def _kind_of_json(text: str) -> Kinds:
    try:
        return _kinds_of_value(json.loads(text, parse_int=_integer, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return frozenset()


def _integer(text: str) -> int:
    return 0  # only its type matters, and a long one would be slow or refused


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _kinds_of_value(value: Any) -> Kinds:
    match value:
        case bool():
            return frozenset({"boolean"})
        case None:
            return frozenset({"null"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"}) if value.is_integer() else frozenset({"number"})
        case str():
            return STRING
        case dict():
            return frozenset({"object"})
        case _:
            return frozenset({"array"})


def _named(names: Any) -> Kinds:
    kinds: set[str] = set()
    for name in names if isinstance(names, list) else [names]:
        kind = _ALIASES.get(str(name).lower(), str(name).lower())
        if kind not in ANY:
            return ANY
        kinds |= {"number", "integer"} if kind == "number" else {kind}
    return frozenset(kinds)


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema that refers to another stands for; None if that is nothing."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = _referred(schema["$ref"], root)
    return None


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place
