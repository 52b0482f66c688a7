"""How a config field declares its flag; ``config/sources.py`` reads it, nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] | None = None,
    kind: str | None = None,
    parse: Callable[[str], Any] | None = None,
    synonyms: Mapping[str, str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    metavar: str | None = None,
    separator: str | None = ",",
    secret: bool = False,
) -> Any:
    """A dataclass field that is also a flag, an environment variable and a YAML key.

    ``flag`` defaults to the field's name with hyphens; ``aliases`` are further flags. ``choices`` are the
    allowed values; ``kind`` names a component kind whose registered names are (plus ``auto``).
    ``parse`` turns a string into the value where the annotation does not say how. ``synonyms`` are further
    words for values. ``minimum`` and ``maximum`` are inclusive. ``separator`` parts several values in
    one environment variable (None: it holds one, or a JSON list). A ``secret`` is never shown.
    """
    metadata = {
        "help": help,
        "flag": flag,
        "aliases": aliases,
        "choices": choices,
        "kind": kind,
        "parse": parse,
        "synonyms": synonyms or {},
        "minimum": minimum,
        "maximum": maximum,
        "metavar": metavar,
        "separator": separator,
        "secret": secret,
    }
    return field(default=default, metadata=metadata)


def parse_size(text: str) -> int:
    """Bytes from ``4GiB``, ``4G`` (both binary), ``4GB`` (decimal) or a plain number.

    :raises ValueError: it is none of these.
    """
    units = {"": 1, "b": 1}
    for power, letter in enumerate("kmgt", start=1):
        units |= {letter: 1024**power, f"{letter}ib": 1024**power, f"{letter}b": 1000**power}
    digits = text.strip().lower()
    number = digits.rstrip("bgikmt ")
    unit = digits[len(number) :].strip()
    if unit not in units:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB")
    try:
        return int(float(number) * units[unit])
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB"
        ) from None


def parse_count(text: str) -> int:
    """A number of tokens: plain, or with ``k`` and ``m`` (decimal), ``K`` and ``M`` (binary), as vLLM has it.

    :raises ValueError: it is neither.
    """
    unit = {"k": 1000, "m": 1000**2, "K": 1024, "M": 1024**2}.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    try:
        return int(digits) if unit == 1 else round(float(digits) * unit)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a number of tokens; write 16384, 16K or 16k") from None


def parse_context(text: str) -> int | None:
    """As :func:`parse_count`; ``auto`` and ``-1`` mean the largest that fits."""
    return None if text in ("auto", "-1") else parse_count(text)


def parse_parser(text: str) -> str | None:
    """A parser's name; ``none`` and an empty one mean no parser."""
    return None if text in ("none", "") else text
