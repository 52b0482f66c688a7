"""What llguidance accepts in a JSON schema and reads in its own way, found by experiment."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from llmkit_grammars.json_schema import Schema, nodes

Number = int | float
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
_BESIDE = frozenset({"anyOf", "oneOf", "$ref"})
_INT64 = 1 << 63
_UNSPELT = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Written as \\uXXXX alone, which answers may not have."""


def beyond_llguidance(schema: Schema) -> str | None:
    """What in a parsed schema llguidance would not honour exactly, or None."""
    found = [node for _, node in nodes(schema)]
    for node in found:
        if any(_UNSPELT.search(text) for text in _texts([node.get("const"), node.get("enum")])):
            return "a control character in a value"
        for word in (*_LOWER, *_UPPER):
            if word in node and not _counted(word, node[word], node.get("type", ())):
                return f"{word} {node[word]!r:.30}, which it counts in 64 bits,"
    # Schemas that speak of one value are read as one, with the bounds of all.
    merged = any("allOf" in node or (_BESIDE & node.keys() and len(node) > 1) for node in found)
    for group in [found] if merged else [[node] for node in found if node.get("type") != "integer"]:
        if (why := _lets_a_bound_through(group)) is not None:
            return why
    return None


def _counted(word: str, bound: Number, types: Sequence[str]) -> bool:
    """Whether it is the same as a double, or beyond all integers of 64 bits, which are those in answers."""
    if "integer" in types and abs(bound) >= _INT64:
        return (bound > 0) == (word in _UPPER)
    return isinstance(bound, float) or (abs(bound) < sys.float_info.max and bound == float(bound))


def _lets_a_bound_through(group: Sequence[Schema]) -> str | None:
    """``0`` satisfies its "above 0, up to 0.5": an excluded integer whose fractions alone are wanted."""
    lower = _both(_LOWER, group)
    upper = _both(_UPPER, group)
    for bound in _both(_LOWER[1:], group):
        if bound >= 0 and bound == bound // 1 and any(bound < other < bound + 1 for other in upper):
            return f"exclusiveMinimum {bound} with a maximum within 1 of it"
    for bound in _both(_UPPER[1:], group):
        if bound <= 0 and bound == bound // 1 and any(bound - 1 < other < bound for other in lower):
            return f"exclusiveMaximum {bound} with a minimum within 1 of it"
    return None


def _both(words: Sequence[str], group: Sequence[Schema]) -> list[Number]:
    return [node[word] for node in group for word in words if word in node]


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
