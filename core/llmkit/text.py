"""Pure string helpers for parsers, stop matching and messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def held_back(text: str, markers: Iterable[str]) -> int:
    """Length of the longest suffix of ``text`` that may begin one of ``markers``.

    A streaming stage keeps exactly this many characters back, nothing more: they become either a
    marker or text when more arrives. A complete marker does not count as its own beginning.
    """
    longest = 0
    end = len(text)
    for marker in markers:
        # Most texts have nothing of the sort at their end: look for a first character, from the left.
        start = text.find(marker[0], max(0, end - len(marker) + 1)) if marker else -1
        while start >= 0 and not marker.startswith(text[start:]):
            start = text.find(marker[0], start + 1)
        if start >= 0:
            longest = max(longest, end - start)
    return longest


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``name``, or None where none comes close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def listing(names: Iterable[str]) -> str:
    """Names for a message: sorted, comma separated, or ``none``."""
    return ", ".join(sorted(names)) or "none"
