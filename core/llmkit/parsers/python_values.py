"""Python literals, read as they arrive and written as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

MAX_INT_DIGITS = 4000
"""Of a number that is not written as JSON writes it."""
_WORDS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[\w.+-]+")
_SPACE = re.compile(r"\s*")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_ESCAPES |= {char: char for char in "\\'\""}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_HEX, _OCTAL = "0123456789abcdefABCDEF", "01234567"
_JSON = json.JSONEncoder(ensure_ascii=False)
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


def as_json(text: str) -> str | None:
    """One whole literal as JSON, None if it is none."""
    reader, out = LiteralReader(), list[str]()
    end = reader.read(text + "\n", 0, out)
    return "".join(out) if reader.done and not text[end:].strip() else None


def json_inside(text: str) -> str:
    """As it stands within a JSON string."""
    return _JSON.encode(text)[1:-1]


class LiteralReader:
    """One literal. Strings come out as they arrive, a number or word once it is complete.

    ``read`` takes what belongs to it; then it is ``done``, or has ``failed`` at what no literal has there.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._state: Callable[[str, int, list[str]], int] = self._plain
        self._held = ""  # the beginning of something in a string: quotes, an escape
        self._pieces: list[str] = []  # of a number or word
        self._brackets: list[str] = []  # those that are open
        self._want = "value"  # or "item" (a value or a closer), "colon", "end" (a comma or a closer)
        self._is_key = False
        self._comma = ""  # owed before the next value
        self._quote = ""

    @property
    def held(self) -> str:
        """What it took and has not written."""
        return self._held or "".join(self._pieces)

    def read(self, text: str, at: int, out: list[str]) -> int:
        """Reads on at ``at``, writes JSON to ``out``, and says where it stopped."""
        while at < len(text) and not (self.done or self.failed):
            at = self._state(text, at, out)
        return at

    def _plain(self, text: str, at: int, out: list[str]) -> int:
        blank = _SPACE.match(text, at)
        at = blank.end() if blank is not None else at
        if at == len(text):
            return at
        char = text[at]
        if self._want == "value":
            return self._value(char, at, out)
        if self._want == "colon":
            if char != ":":
                return self._fail(at)
            out.append(": ")
            self._want, self._is_key = "value", False
            return at + 1
        if char == _CLOSERS[self._brackets[-1]]:
            out.append("}" if self._brackets.pop() == "{" else "]")
            self._comma, self._is_key = "", False
            return self._complete(at + 1)
        if self._want == "item":
            return self._value(char, at, out)
        if char != ",":
            return self._fail(at)
        self._comma, self._want, self._is_key = ", ", "item", self._brackets[-1] == "{"
        return at + 1

    def _value(self, char: str, at: int, out: list[str]) -> int:
        if char in "'\"":
            out.append(self._comma + '"')
            self._comma, self._quote, self._held, self._state = "", char, char, self._opening
            return at + 1
        if char in _CLOSERS and not self._is_key:
            out.append(self._comma + ("{" if char == "{" else "["))
            self._brackets.append(char)
            self._comma, self._want, self._is_key = "", "item", char == "{"
            return at + 1
        if _WORD.match(char) is None:
            return self._fail(at)
        self._state = self._word
        return at

    def _complete(self, at: int) -> int:
        self._state, self._held = self._plain, ""
        self._want = "colon" if self._is_key else "end"
        self.done = not self._brackets
        return at

    def _fail(self, at: int) -> int:
        self.failed = True
        return at

    def _word(self, text: str, at: int, out: list[str]) -> int:
        found = _WORD.match(text, at)
        if found is not None:
            self._pieces.append(found.group())
            return found.end()
        word = "".join(self._pieces)
        value = _WORDS.get(word) or _number(word)
        if value is None:
            return self._fail(at)
        out.append(self._comma + (f'"{value}"' if self._is_key else value))
        self._comma = ""
        self._pieces.clear()
        return self._complete(at)

    def _opening(self, text: str, at: int, out: list[str]) -> int:
        """Behind a string's first quote: a second one makes it empty or, with a third, long."""
        if text[at] == self._quote:
            self._held += self._quote
            if len(self._held) == 3:
                self._quote, self._held, self._state = self._held, "", self._string
            return at + 1
        if len(self._held) == 2:
            out.append('"')
            return self._complete(at)
        self._held, self._state = "", self._string
        return at

    def _string(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if char == self._quote[0]:
            self._held += char
            if self._held == self._quote:
                out.append('"')
                return self._complete(at + 1)
            return at + 1
        if self._held:
            out.append(json_inside(self._held))  # quotes within a long string
            self._held = ""
        if char == "\\":
            self._held, self._state = char, self._escape
            return at + 1
        plain = _PLAIN[self._quote[0]].match(text, at)
        assert plain is not None  # neither a quote nor a backslash
        out.append(json_inside(plain.group()))
        return plain.end()

    def _escape(self, text: str, at: int, out: list[str]) -> int:
        char, kind = text[at], self._held[1:2]
        if not kind:
            self._held += char
            if char not in _HEX_LENGTHS and char not in _OCTAL:
                self._escaped(json_inside(_ESCAPES.get(char, self._held)), out)
            return at + 1
        digits, length, base = (_HEX, 2 + _HEX_LENGTHS[kind], 16) if kind in _HEX_LENGTHS else (_OCTAL, 4, 8)
        if char in digits:
            self._held += char
            if len(self._held) == length:
                self._escaped(_code(self._held, base), out)
            return at + 1
        self._escaped(_code(self._held, base) if base == 8 else json_inside(self._held), out)
        return at

    def _escaped(self, written: str, out: list[str]) -> None:
        out.append(written)
        self._held, self._state = "", self._string


def _code(escape: str, base: int) -> str:
    code = int(escape[2:] if base == 16 else escape[1:], base)
    if 0xD800 <= code < 0xE000:  # half of a pair: JSON's escapes join as Python's text did
        return f"\\u{code:04x}"
    return json_inside(chr(code) if code <= 0x10FFFF else escape)


def _number(word: str) -> str | None:
    if _JSON_NUMBER.fullmatch(word):
        return word
    if not word.isascii() or len(word) > MAX_INT_DIGITS:
        return None
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return None
    return repr(value) if math.isfinite(value) else None
