"""Checks of one field's type and range, and the words of what they refuse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from llmkit.errors import RequestError

INT64 = 1 << 63


def integer(name: str, value: Any, least: int, most: int = INT64 - 1, *, flag: str | None = None) -> None:
    """``flag`` moves ``most``. :raises RequestError: no integer of ``least`` to ``most``."""
    if type(value) is not int:
        raise wrong_type(name, value, "an integer")
    _bounds(name, value, "integer", least, most, flag=flag)


def number(
    name: str, value: Any, least: float, most: float | None = None, *, open_below: bool = False
) -> None:
    """:raises RequestError: no finite number of ``least`` (itself excluded if ``open_below``) to ``most``."""
    if type(value) not in (int, float):
        raise wrong_type(name, value, "a number")
    # An int is compared, not converted: it may be beyond every float.
    if abs(value) >= INT64 if type(value) is int else not math.isfinite(value):
        raise RequestError(f"{name} is {shown(value)}; it must be finite", param=name, code="invalid_value")
    _bounds(name, value, "decimal", least, most, open_below=open_below)


def switch(name: str, value: Any) -> None:
    """:raises RequestError: it is neither true nor false."""
    if not isinstance(value, bool):
        raise wrong_type(name, value, "true or false")


def texts(name: str, values: Any, most: int, most_chars: int, *, flag: str | None = None) -> None:
    """``flag`` moves ``most``.

    :raises RequestError: no list of at most ``most`` texts of 1 to ``most_chars`` characters.
    """
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, str) for value in values):
        raise wrong_type(name, values, "a list of strings")
    if len(values) > most:
        raise RequestError(
            f"{name} has {len(values)} strings; it may have at most {most}{set_by(flag)}",
            param=name,
            code="array_above_max_length",
        )
    for value in values:
        check_text(name, value)
        if not value:
            raise RequestError(
                f"{name} has an empty string; every answer has that at once", param=name, code="invalid_value"
            )
        if len(value) > most_chars:
            raise RequestError(
                f"{name} has a string of {len(value)} characters; they may have at most {most_chars}",
                param=name,
                code="string_above_max_length",
            )


def check_text(name: str, text: str) -> None:
    """:raises RequestError: it holds half a surrogate pair, which no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} has a lone surrogate (\\u{ord(text[error.start]):04x}) at character {error.start};"
            " it must be valid Unicode",
            param=name,
            code="invalid_value",
        ) from None


def check_token_ids(name: str, ids: Any, vocab_size: int, most: int | None = None) -> None:
    """:raises RequestError: ``ids`` is no list of at most ``most`` integers in the vocabulary."""
    # Whole-list tests first: a prompt may have a million ids.
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise wrong_type(name, ids, "a list of token ids, which are integers")
    if not {*map(type, ids)} <= {int}:
        at = next(at for at, token_id in enumerate(ids) if type(token_id) is not int)
        raise wrong_type(f"{name}[{at}]", ids[at], "a token id, which is an integer")
    if most is not None and len(ids) > most:
        raise RequestError(
            f"{name} has {len(ids)} ids; it may have at most {most}",
            param=name,
            code="array_above_max_length",
        )
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        at = next(at for at, token_id in enumerate(ids) if not 0 <= token_id < vocab_size)
        raise unknown_id(f"{name}[{at}]", ids[at], vocab_size)


def unknown_id(name: str, token_id: int, vocab_size: int) -> RequestError:
    """The error for an id that has no embedding row."""
    return RequestError(
        f"{name} is token id {shown(token_id)}; this model knows 0 to {vocab_size - 1}",
        param=name,
        code="invalid_value",
    )


def wrong_type(name: str, value: Any, wanted: str) -> RequestError:
    """The error for a value that is not ``wanted``."""
    return RequestError(f"{name} is {shown(value)}; it must be {wanted}", param=name, code="invalid_type")


def shown(value: Any, longest: int = 60) -> str:
    """A value for a message: of bounded length whatever a client sends."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}{_odd_one(value)}"
    text = repr(value[:longest] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= longest else text[:longest] + "..."


def set_by(flag: str | None) -> str:
    """Behind a bound that ``flag`` moves: which flag that is."""
    return "" if flag is None else f" ({flag})"


def _bounds(
    name: str,
    value: float,
    kind: str,
    least: float,
    most: float | None,
    *,
    open_below: bool = False,
    flag: str | None = None,
) -> None:
    if value < least or (open_below and value == least):
        need = f"above {least}" if open_below else f"at least {least}"
        raise RequestError(
            f"{name} is {shown(value)}; it must be {need}", param=name, code=f"{kind}_below_min_value"
        )
    if most is not None and value > most:
        raise RequestError(
            f"{name} is {shown(value)}; it may be at most {most}{set_by(flag)}",
            param=name,
            code=f"{kind}_above_max_value",
        )


def _odd_one(values: Iterable[Any]) -> str:
    """The first item that is neither a string nor an int: most often the one that is wrong."""
    for value in values:
        if type(value) not in (str, int):
            return f" with a {type(value).__name__} in it"
    return ""
