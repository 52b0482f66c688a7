"""What a field of a body is worth here: honoured, ignored since it cannot change the result, or refused.

A field is honoured unless its annotation says otherwise. Both marks stand in ``/openapi.json`` as
``x-llmkit``, from where docs/api.md and the tests of every field read them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from llmkit import RequestError
from llmkit.contracts import nearest

logger = logging.getLogger(__name__)

_MAX_REMEMBERED = 1024


@dataclass(frozen=True)
class Ignored:
    """Mark of a field that cannot change the answer; it is taken in silence."""

    why: str
    example: Any

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return _marked(handler(schema), "ignored", self.why, self.example)


def _never(_value: Any) -> bool:
    return False


@dataclass(frozen=True)
class Refused:
    """Mark of a field that nothing here honours, though ignoring it would change the answer."""

    why: str
    """Continues ``NAME is not supported: ``."""
    example: Any
    passes: Callable[[Any], bool] = _never
    """Whether a value, not null, asks for nothing."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return _marked(handler(schema), "refused", self.why, self.example)


class FieldRules:
    """Judges the fields of bodies; one for all routes. Owns which unknown fields were warned of."""

    def __init__(self, *, strict: bool) -> None:
        """``strict`` refuses unknown fields instead of warning of each once in the life of the server."""
        self._strict = strict
        self._seen: set[str] = set()

    def check(self, body: BaseModel, route: str) -> None:
        """:raises RequestError: a field asks for what is not here, or is unknown to a strict server."""
        for name, value, holder in _given_unknown(body):
            self._unknown(name, value, holder, route)
        for name, value, mark in _given_refused(body):
            if value is not None and not mark.passes(value):
                raise RequestError(
                    f"{name} is not supported: {mark.why}", param=name, code="unsupported_parameter"
                )

    def _unknown(self, name: str, value: Any, holder: BaseModel, route: str) -> None:
        if self._strict:
            guess = nearest(name.rpartition(".")[2], type(holder).model_fields)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise RequestError(
                f"{route} knows no field {name[:80]!r}{hint}", param=name[:80], code="unknown_parameter"
            )
        if name not in self._seen and len(self._seen) < _MAX_REMEMBERED:
            self._seen.add(name)
            logger.warning("%s: ignoring the unknown request field %.80r", route, name)


def _given_unknown(body: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, BaseModel]]:
    """Fields that no schema knows, of the body and of the objects right in it. Those of a list's items, such
    as messages, are for the template.
    """
    for name, value in (body.model_extra or {}).items():
        yield f"{prefix}{name}", value, body
    for name, value in body:
        if isinstance(value, BaseModel):
            yield from _given_unknown(value, f"{prefix}{name}.")


def _given_refused(body: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, Refused]]:
    for name, mark in _refused_fields(type(body)).items():
        yield f"{prefix}{name}", getattr(body, name), mark
    for name in body.model_fields_set:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            yield from _given_refused(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for place, item in enumerate(value):
                yield from _given_refused(item, f"{prefix}{name}[{place}].")


@functools.cache
def _refused_fields(body: type[BaseModel]) -> Mapping[str, Refused]:
    return {
        name: mark
        for name, field in body.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Refused)
    }


def _marked(schema: dict[str, Any], status: str, why: str, example: Any) -> dict[str, Any]:
    return {**schema, "x-llmkit": {"status": status, "why": why}, "examples": [example]}
