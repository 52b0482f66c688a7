"""From what somebody typed, in a shell or in YAML, to a value of an annotated type."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})
MAX_SHOWN = 200
"""Characters of a value that a message quotes."""


def convert(value: Any, annotation: Any, *, separator: str | None = None) -> Any:
    """``value`` as the annotated type: a string is parsed, another value must already fit.

    Knows str, int, float, bool, Path, Literal, Enum, ``X | None``, ``tuple[X, ...]`` and dict. A tuple
    comes from a sequence, a JSON list, or text: one element, or several apart at ``separator``.

    :raises ValueError: it does not fit; the message continues ``WHERE: ``.
    """
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _union(value, get_args(annotation), separator)
    if origin is Literal:
        return _one_of(value, {str(choice): choice for choice in get_args(annotation)})
    if origin is tuple:
        element = get_args(annotation)[0]
        return tuple(convert(part, element) for part in _parts(value, separator))
    if annotation is dict or origin is dict:
        return _mapping(value)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of(value, {str(member.value): member for member in annotation})
    if annotation in _SCALARS:
        return _SCALARS[annotation](value)
    raise ValueError(f"values of type {annotation!r} cannot be given as text")


def type_name(annotation: Any) -> str:
    """The type in a user's words, for help and messages."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(part) for part in get_args(annotation) if part is not type(None))
    if origin is Literal:
        return "|".join(map(str, get_args(annotation)))
    if origin is tuple:
        return f"{type_name(get_args(annotation)[0])}, repeatable"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    named = {str: "text", int: "integer", float: "number", bool: "true|false", Path: "path", dict: "JSON"}
    return named.get(origin or annotation, str(annotation))


def parse_json(text: str, wanted: type[Any]) -> Any:
    """:raises ValueError: ``text`` is not JSON of this type."""
    shown = repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"{shown} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{shown} is not JSON ({error})") from None
    if not isinstance(value, wanted):
        raise ValueError(f"{shown} is not a JSON {'object' if wanted is dict else 'list'}")
    return value


def _union(value: Any, members: tuple[Any, ...], separator: str | None) -> Any:
    if value is None and type(None) in members:
        return None
    failure = ValueError(f"{value!r} is missing")
    for member in members:
        if member is type(None):
            continue
        try:
            return convert(value, member, separator=separator)
        except ValueError as error:
            failure = error
    raise failure


def _one_of(value: Any, choices: Mapping[str, Any]) -> Any:
    text = str(value.value) if isinstance(value, Enum) else str(value)
    if text in choices:
        return choices[text]
    raise ValueError(f"{value!r} is not one of {', '.join(choices)}")


def _parts(value: Any, separator: str | None) -> list[Any]:
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            return list(parse_json(value, list))
        parts = value.split(separator) if separator else [value]
        return [part.strip() if separator else part for part in parts]
    if isinstance(value, list | tuple):
        parts = []
        for part in value:
            is_list = isinstance(part, str) and part.lstrip().startswith("[")
            parts += parse_json(part, list) if is_list else [part]
        return parts
    raise ValueError(f"{value!r} is not a list")


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = parse_json(value, dict)
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a JSON object")
    return dict(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; put it in quotes")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{value!r} is not an integer") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def _number(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else str(value)
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _path(value: Any) -> Path:
    return value if isinstance(value, Path) else Path(_text(value))


_SCALARS = {str: _text, int: _integer, float: _number, bool: _boolean, Path: _path}
