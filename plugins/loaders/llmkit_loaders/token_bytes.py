"""The exact bytes of a vocabulary's tokens: byte-level and byte-fallback spellings undone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in set(_PRINTABLE)]

BYTE_TO_CHAR = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + place) for place, byte in enumerate(_HIDDEN)
}
"""GPT-2's spelling: the byte itself where it is printable, else the next free character from 256 on."""
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def byte_level(token: str) -> bytes:
    """Of a token spelt in GPT-2's alphabet; one with any other character stands for itself."""
    try:
        return bytes(CHAR_TO_BYTE[char] for char in token)
    except KeyError:
        return token.encode()


def byte_fallback(token: str, space: str = "▁") -> bytes:
    """Of a sentencepiece token: ``<0x0A>`` is a byte, ``▁`` a space."""
    match = _BYTE.match(token)
    return bytes([int(match[1], 16)]) if match else token.replace(space, " ").encode()


def spelling_of(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """How a ``tokenizer.json``'s decoder turns one token into bytes."""
    steps = _steps(decoder)
    if any(step.get("type") == "ByteLevel" for step in steps):
        return byte_level
    for step in steps:
        if step.get("type") == "Metaspace":
            space = str(step.get("replacement", "▁"))
            return lambda token: byte_fallback(token, space)
        if step.get("type") == "Replace" and step.get("content") == " ":
            replaced = step.get("pattern", {}).get("String", "▁")
            return lambda token: byte_fallback(token, replaced)
        if step.get("type") == "ByteFallback":
            return byte_fallback
    return str.encode


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", ()) for step in _steps(inner)]
    return [decoder]
