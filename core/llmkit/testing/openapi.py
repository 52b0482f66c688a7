"""The fields of request bodies, as an application's own OpenAPI document has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

STATUSES = ("honoured", "ignored", "refused")
_OBJECTS = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class BodyField:
    """One field of a body, or of an object within it."""

    name: str
    kind: str
    """Its JSON types in words; an object of its own by its name."""
    status: str
    """One of :data:`STATUSES`: what a server does with it."""
    about: str
    """What it means, or why it is ignored or refused."""
    example: Any
    """Of a field that is not honoured: a value that is ignored or refused."""


def bodies(document: Mapping[str, Any]) -> dict[str, str]:
    """Each route that takes a body, as ``POST /path``, to the name of the body's schema."""
    found = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            if "$ref" in schema:
                found[f"{method.upper()} {path}"] = schema["$ref"].removeprefix(_OBJECTS)
    return found


def fields(document: Mapping[str, Any], schema: str) -> list[BodyField]:
    """The fields of one schema of the document, in its order."""
    properties = document["components"]["schemas"][schema].get("properties", {})
    return [_field(name, about) for name, about in properties.items()]


def objects(document: Mapping[str, Any], schema: str) -> list[str]:
    """Names of the schemas that ``schema`` leads to, itself first."""
    names = [schema]
    for name in names:
        for inner in _references(document["components"]["schemas"][name]):
            if inner not in names:
                names.append(inner)
    return names


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_OBJECTS)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _field(name: str, schema: Mapping[str, Any]) -> BodyField:
    mark = schema.get("x-llmkit", {})
    about = " ".join(mark.get("why", schema.get("description", "")).split())
    example = schema["examples"][0] if mark else None
    return BodyField(name, _kind(schema), mark.get("status", "honoured"), about, example)


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_OBJECTS)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [_kind(one) for one in schema[several] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if kind in ("integer", "number") and least is not None and abs(least) < 2**53:
        return f"{kind} from {least:g}" + (f" to {most:g}" if most is not None and most < 2**53 else "")
    return kind
