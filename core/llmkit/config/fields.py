"""How a config field declares its flag; ``config/sources.py`` reads it, nothing else does."""

from __future__ import annotations

from collections.abc import Callable
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
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A dataclass field that is also a flag, an environment variable and a YAML key.

    ``flag`` defaults to the field's name with hyphens; ``aliases`` are further flags. ``choices`` are the
    allowed values; ``kind`` names a component kind whose registered names are (plus ``auto``).
    ``parse`` turns a string into the value where the annotation does not say how. ``minimum`` and
    ``maximum`` are inclusive.
    """
    metadata = {
        "help": help,
        "flag": flag,
        "aliases": aliases,
        "choices": choices,
        "kind": kind,
        "parse": parse,
        "minimum": minimum,
        "maximum": maximum,
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
