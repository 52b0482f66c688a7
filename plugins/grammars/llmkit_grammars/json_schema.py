"""JSON schemas: what is well formed and honoured, in a shape that both backends read alike.

Neither backend refuses all that it does not honour, so every keyword goes through here: it is checked, or it
is an annotation, or the schema is refused. Meanings are those of draft 2020-12.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmkit.contracts import listing
from llmkit_grammars import regexes

Schema = dict[str, Any]

MAX_NODES = 20_000
MAX_DEPTH = 64
MAX_LENGTH = 100_000
"""Of what minLength, maxItems and the like say."""
MAX_VALUES = 5_000
"""Of one enum."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_INTEGER_FORMATS = {"int32": (1 << 31) - 1, "int64": 10**18}
"""The largest, and its negative the least: llguidance counts bounds in doubles and fails at 64 bits."""
_VAGUE_FORMATS = frozenset({"float", "double", "password", "int32", "int64"})
"""OpenAPI's: true of every value of their type, once the integers' bounds are set."""

ANNOTATIONS = frozenset(
    "title description default examples example deprecated readOnly writeOnly $comment $schema $vocabulary"
    " contentMediaType contentEncoding contentSchema discriminator externalDocs xml nullable strict".split()
)
UNSUPPORTED = frozenset(
    "not if then else contains minContains maxContains uniqueItems propertyNames dependentRequired"
    " dependentSchemas dependencies unevaluatedProperties unevaluatedItems additionalItems $anchor"
    " $dynamicAnchor $dynamicRef $recursiveRef $recursiveAnchor divisibleBy disallow extends".split()
)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_COUNTED = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")
_OBJECT_WORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
KNOWN = frozenset(
    {*_COUNTS, *_BOUNDS, *_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMAS, *ANNOTATIONS, *UNSUPPORTED}
    | {"type", "enum", "const", "pattern", "format", "multipleOf", "required", "$ref", "$id", "id"}
)


def parse(text: str) -> Schema:
    """A schema as it is given to a backend: checked, without annotations, its objects closed.

    An object that lists ``properties`` and says nothing of others has no others, as in OpenAI's strict mode,
    unless it is combined with another schema (``allOf`` and the like) that may add some.

    :raises ValueError: it is no schema, or says what cannot be honoured; with the place.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema is no JSON: {error}") from None
    if value is False:
        raise ValueError("the schema is false, which no answer satisfies")
    root = _Checker().node({} if value is True else value, "#", 0)
    assert isinstance(root, dict)
    _check_refs(root)
    _close(root)
    return root


def beyond_xgrammar(schema: Schema) -> str | None:
    """What in a parsed schema xgrammar would not honour exactly, or None."""
    return next((why for _, node in nodes(schema) if (why := _beyond_xgrammar(node))), None)


def nodes(node: Any, where: str = "#") -> Iterator[tuple[str, Schema]]:
    """Every schema in ``node``, itself first, with its place."""
    if not isinstance(node, dict):
        return
    yield where, node
    for word in _SCHEMA_MAPS:
        for name, inner in node.get(word, {}).items():
            yield from nodes(inner, f"{where}/{word}/{name}")
    for word in _SCHEMA_LISTS:
        for index, inner in enumerate(node.get(word, ())):
            yield from nodes(inner, f"{where}/{word}/{index}")
    for word in _SCHEMAS:
        yield from nodes(node.get(word), f"{where}/{word}")


# ---- shape ----


class _Checker:
    """Copies a schema, keeping what constrains; counts what it has seen."""

    def __init__(self) -> None:
        self._seen = 0

    def node(self, value: Any, where: str, depth: int) -> Schema | bool:
        self._seen += 1
        if self._seen > MAX_NODES:
            raise ValueError(f"the schema holds more than {MAX_NODES} schemas")
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested more than {MAX_DEPTH} deep")
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object, true or false")
        kept: Schema = {}
        for word, held in value.items():
            if word in ANNOTATIONS or word not in KNOWN:
                _check_typo(where, word)
            elif word in UNSUPPORTED:
                self._unsupported(where, word, held)
            else:
                kept[word] = self._word(f"{where}/{word}", word, held, depth)
        return _simplified(kept, where)

    def _word(self, where: str, word: str, held: Any, depth: int) -> Any:
        if word in _SCHEMA_MAPS:
            _expect(where, held, (dict,), "an object")
            if word == "patternProperties":
                for pattern in held:
                    _pattern(where, pattern)
            return {name: self.node(inner, f"{where}/{name}", depth + 1) for name, inner in held.items()}
        if word in _SCHEMA_LISTS:
            if not isinstance(held, list) or not held:
                raise _wrong(where, held, "a list of at least one schema")
            return [self.node(inner, f"{where}/{i}", depth + 1) for i, inner in enumerate(held)]
        if word in _SCHEMAS:
            if isinstance(held, list):
                raise ValueError(f"{where} is a list; write it as prefixItems")
            return self.node(held, where, depth + 1)
        _CHECKS[word](where, held)
        return held

    @staticmethod
    def _unsupported(where: str, word: str, held: Any) -> None:
        if (word == "uniqueItems" and held is False) or (word == "unevaluatedProperties" and held is True):
            return
        raise ValueError(f"{where}/{word}: {word!r} cannot be honoured; leave it out or say it another way")


def _simplified(node: Schema, where: str) -> Schema:
    """OpenAPI's number formats said in bounds, those that say nothing dropped."""
    form = node.get("format")
    if form in _INTEGER_FORMATS and node.get("type") == "integer":
        node.setdefault("minimum", -_INTEGER_FORMATS[form])
        node.setdefault("maximum", _INTEGER_FORMATS[form])
    if form in _VAGUE_FORMATS:
        del node["format"]
    elif form is not None and form not in FORMATS:
        raise ValueError(f"{where}/format: {form!r} cannot be honoured; known are {listing(FORMATS)}")
    _check_bounds(node, where)
    return node


def _check_bounds(node: Schema, where: str) -> None:
    """:raises ValueError: no value of the node's types lies between its bounds."""
    types = node.get("type", ())
    types = {types} if isinstance(types, str) else {*types}
    for kind, least, most in _COUNTED:
        if types == {kind} and node.get(least, 0) > node.get(most, MAX_LENGTH):
            raise ValueError(f"{where}: {least} is {node[least]} and {most} {node[most]}; nothing has both")
    if not types or not types <= {"integer", "number"}:
        return
    lows = [(node[word], word == "exclusiveMinimum", word) for word in _BOUNDS[::2] if word in node]
    highs = [(node[word], word == "exclusiveMaximum", word) for word in _BOUNDS[1::2] if word in node]
    for low, above, low_word in lows:
        for high, below, high_word in highs:
            whole = types == {"integer"} and _first_integer(low, above) > -_first_integer(-high, below)
            if low > high or (low == high and (above or below)) or whole:
                raise ValueError(
                    f"{where}: {low_word} is {low} and {high_word} {high}; no {listing(types)} lies between"
                )


def _first_integer(low: float, above: bool) -> int:
    """The least one of at least ``low``, or ``above`` it."""
    return math.floor(low) + 1 if above else math.ceil(low)


def _check_typo(where: str, word: str) -> None:
    """An unknown keyword says nothing by the standard; one that looks like a known one is a mistake."""
    if word in ANNOTATIONS or word.startswith(("x-", "$")):
        return
    guess = difflib.get_close_matches(word, KNOWN, n=1, cutoff=0.85)
    if guess:
        raise ValueError(f"{where} has {word!r:.60}; did you mean {guess[0]!r}?")


def _expect(where: str, held: Any, kinds: tuple[type, ...], wanted: str) -> None:
    if type(held) not in kinds:  # JSON gives exactly these; a bool is no int
        raise _wrong(where, held, wanted)


def _type(where: str, held: Any) -> None:
    names = held if isinstance(held, list) else [held]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise _wrong(where, held, f"one of {listing(TYPES)}, or a list of them")
    if len(set(names)) != len(names):
        raise _wrong(where, held, "a list without repetition")


def _count(where: str, held: Any) -> None:
    if isinstance(held, bool) or not isinstance(held, (int, float)) or held != held // 1 or held < 0:
        raise _wrong(where, held, "an integer of at least 0")
    if held > MAX_LENGTH:
        raise ValueError(f"{where} is {held:.6g}; it may be at most {MAX_LENGTH}")


def _number(where: str, held: Any) -> None:
    _expect(where, held, (int, float), "a number")


def _multiple(where: str, held: Any) -> None:
    _number(where, held)
    if held <= 0:
        raise _wrong(where, held, "a number above 0")


def _values(where: str, held: Any) -> None:
    if not isinstance(held, list) or not held:
        raise _wrong(where, held, "a list of at least one value")
    if len(held) > MAX_VALUES:
        raise ValueError(f"{where} has {len(held)} values; it may have at most {MAX_VALUES}")


def _names(where: str, held: Any) -> None:
    if not isinstance(held, list) or not all(isinstance(name, str) for name in held):
        raise _wrong(where, held, "a list of strings")


def _pattern(where: str, held: Any) -> None:
    _expect(where, held, (str,), "a string")
    try:
        regexes.check(held)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _string(where: str, held: Any) -> None:
    _expect(where, held, (str,), "a string")


def _anything(where: str, held: Any) -> None:
    """Every value is one."""


def _identity(where: str, held: Any) -> None:
    if where.count("/") > 1:
        raise ValueError(f"{where}: an id within the schema cannot be honoured; refer by '#/...'")


_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_BOUNDS, _number),
    "type": _type,
    "enum": _values,
    "const": _anything,
    "pattern": _pattern,
    "format": _string,
    "multipleOf": _multiple,
    "required": _names,
    "$ref": _string,
    "$id": _identity,
    "id": _identity,
}


def _wrong(where: str, held: Any, wanted: str) -> ValueError:
    shown = json.dumps(held, default=str)
    return ValueError(f"{where} is {shown if len(shown) <= 60 else shown[:60] + '...'}; it must be {wanted}")


# ---- references and open objects ----


def _check_refs(root: Schema) -> None:
    for where, node in nodes(root):
        if "$ref" in node:
            _target(root, node["$ref"], where)


def _target(root: Schema, ref: str, where: str) -> Any:
    if ref != "#" and not ref.startswith("#/"):
        raise ValueError(
            f"{where}/$ref is {ref!r:.80}; only references within the schema ('#/...') are followed"
        )
    found: Any = root
    for part in ref[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise ValueError(f"{where}/$ref is {ref!r:.80}; there is nothing of that name")
    if not isinstance(found, (dict, bool)):
        raise ValueError(f"{where}/$ref is {ref!r:.80}, which is no schema")
    return found


def _close(root: Schema) -> None:
    combined: set[int] = set()
    for where, node in nodes(root):
        partners = [inner for word in ("allOf", "anyOf", "oneOf") for inner in node.get(word, ())]
        if "$ref" in node:
            partners.append(_target(root, node["$ref"], where))
        with_more = bool(_OBJECT_WORDS & node.keys()) or ("$ref" in node and len(partners) > 1)
        if "allOf" in node or (partners and with_more):
            _mark(root, node, combined)
    for where, node in nodes(root):
        properties = node.get("properties")
        listed = properties is not None and set(node.get("required", ())) <= properties.keys()
        if listed and properties and "additionalProperties" not in node and id(node) not in combined:
            node["additionalProperties"] = False
        # Names that nobody lists may repeat in an answer, and a reader counts them once.
        open_names = node.get("additionalProperties") is not False or node.get("patternProperties")
        if node.get("minProperties", 0) > 1 and open_names:
            raise ValueError(f"{where}/minProperties: more than 1 needs every property to be listed")


def _mark(root: Schema, node: Any, combined: set[int]) -> None:
    """``node`` and all that speak of the same value."""
    if not isinstance(node, dict) or id(node) in combined:
        return
    combined.add(id(node))
    for word in ("allOf", "anyOf", "oneOf"):
        for inner in node.get(word, ()):
            _mark(root, inner, combined)
    if "$ref" in node:
        _mark(root, _target(root, node["$ref"], "#"), combined)


# ---- what xgrammar honours ----

_XGRAMMAR_WORDS: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": frozenset(_BOUNDS),
    "number": frozenset(),
    "string": frozenset(),  # with a length it lets control characters through
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_BESIDE = frozenset({"$defs", "definitions", "$id", "id"})
_INT64 = 1 << 63


def _beyond_xgrammar(node: Schema) -> str | None:
    """Found by experiment: what it ignores, reads differently or honours only alone."""
    words = node.keys() - _BESIDE
    for alone in ("$ref", "anyOf"):
        if alone in words:
            return f"{alone!r} beside {listing(words - {alone})}" if len(words) > 1 else None
    types = node.get("type", [])
    types = [types] if isinstance(types, str) else types
    values = [node["const"]] if "const" in words else node.get("enum")
    if values is not None:
        if words - {"type", "enum"} and words - {"type", "const"}:
            return f"'enum' beside {listing(words)}"
        if any(isinstance(value, (dict, list, float)) for value in values):
            return "an enum of more than plain values"
        if types and not all(_is_of(value, types) for value in values):
            return "an enum with values of another type"
        return None
    if not words:
        return None
    allowed = frozenset[str]().union(*(_XGRAMMAR_WORDS[name] for name in types))
    if words - {"type"} - allowed:
        return listing(words - {"type"} - allowed)
    if any(not isinstance(node[word], int) or abs(node[word]) >= _INT64 for word in _BOUNDS if word in words):
        return "a bound that is no 64 bit integer"
    if "object" in types:
        return _object_beyond_xgrammar(node)
    return None


def _object_beyond_xgrammar(node: Schema) -> str | None:
    properties = node.get("properties") or {}
    if any(inner is False for inner in properties.values()):
        return "a property that is false"
    if not set(node.get("required", ())) <= properties.keys():
        return "a required property that is not listed"
    if properties and node.get("additionalProperties") is not False:
        return "other properties beside those listed"
    return None


def _is_of(value: Any, types: list[str]) -> bool:
    if value is None:
        return "null" in types
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int):
        return "integer" in types or "number" in types
    return isinstance(value, str) and "string" in types
