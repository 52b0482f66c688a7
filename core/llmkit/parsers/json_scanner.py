"""Reads one JSON value as it comes: where it ends and whether it is JSON, without building it."""

from __future__ import annotations

import re

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(
    r"""[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"""  # with whole escapes
)
_ESCAPES = frozenset('"\\/bfnrt')
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_DIGITS = "0123456789"

_NUMBER = {
    state: {char: then for chars, then in row.items() for char in chars}
    for state, row in {
        "minus": {"0": "zero", "123456789": "int"},
        "zero": {".": "point", "eE": "exp"},
        "int": {_DIGITS: "int", ".": "point", "eE": "exp"},
        "point": {_DIGITS: "fraction"},
        "fraction": {_DIGITS: "fraction", "eE": "exp"},
        "exp": {"+-": "sign", _DIGITS: "power"},
        "sign": {_DIGITS: "power"},
        "power": {_DIGITS: "power"},
    }.items()
}
"""After which part of a number which character leads to which part."""
_WHOLE_NUMBERS = frozenset({"zero", "int", "fraction", "power"})
_NUMBER_STARTS = {"-": "minus", "0": "zero", **dict.fromkeys("123456789", "int")}


_VALUE, _ITEM_OR_END, _KEY, _KEY_OR_END, _COLON, _COMMA_OR_END, *_WITHIN = range(11)
"""What comes next: before these there may be whitespace."""
_STRING, _ESCAPE, _HEX, _NUMBER_PART, _LITERAL = _WITHIN


class JsonScanner:
    """One value, in time linear in its text however that is cut.

    Its text stays as it is, but that a control character in a string, which JSON forbids and models
    write, is escaped.
    """

    def __init__(self) -> None:
        self.done = False
        """The value is complete."""
        self.failed = False
        """What came is no JSON."""
        self._want = _VALUE
        self._closers: list[str] = []
        """Of the objects and lists that are open."""
        self._is_key = False
        self._hex_left = 0
        self._number = ""
        self._literal = ""
        self._changed: list[str] = []
        self._copied = 0

    def scan(self, text: str, start: int = 0) -> tuple[int, str]:
        """Read on from ``start``.

        :returns: where the value ends, where it fails or where the text ends, and the text to there.
        """
        at = self._copied = start
        end = len(text)
        while at < end and not self.done and not self.failed:
            if self._want <= _COMMA_OR_END:
                if text[at] in " \t\n\r":
                    at = _end_of(_SPACE, text, at)
                else:
                    at = self._token(text, at)
            elif self._want == _STRING:
                at = self._string(text, at)
            else:
                at = self._inside(text[at], at)
        self._changed.append(text[self._copied : at])
        read = "".join(self._changed)
        self._changed.clear()
        return at, read

    def _token(self, text: str, at: int) -> int:
        char, want = text[at], self._want
        if want == _COMMA_OR_END and char == ",":
            self._want = _KEY if self._closers[-1] == "}" else _VALUE
        elif want == _COLON and char == ":":
            self._want = _VALUE
        elif want in (_KEY, _KEY_OR_END) and char == '"':
            self._want, self._is_key = _STRING, True
        elif want in (_COMMA_OR_END, _KEY_OR_END, _ITEM_OR_END) and char == self._closers[-1]:
            self._closers.pop()
            self._value_ended()
        elif want in (_VALUE, _ITEM_OR_END):
            self._value(char)
        else:
            self.failed = True
        return at if self.failed else at + 1

    def _value(self, char: str) -> None:
        if char == '"':
            self._want, self._is_key = _STRING, False
        elif char == "{":
            self._closers.append("}")
            self._want = _KEY_OR_END
        elif char == "[":
            self._closers.append("]")
            self._want = _ITEM_OR_END
        elif char in _NUMBER_STARTS:
            self._want, self._number = _NUMBER_PART, _NUMBER_STARTS[char]
        elif char in _LITERALS:
            self._want, self._literal = _LITERAL, _LITERALS[char]
        else:
            self.failed = True

    def _string(self, text: str, at: int) -> int:
        at = _end_of(_PLAIN, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._want = _ESCAPE
        elif text[at] == '"':
            if self._is_key:
                self._want = _COLON
            else:
                self._value_ended()
        else:
            self._changed += (text[self._copied : at], f"\\u{ord(text[at]):04x}")
            self._copied = at + 1
        return at + 1

    def _inside(self, char: str, at: int) -> int:
        """One character of a number, a literal or an escape."""
        if self._want == _NUMBER_PART:
            part = _NUMBER[self._number].get(char)
            if part is None and self._number in _WHOLE_NUMBERS:
                self._value_ended()
                return at
            self._number = part or ""
            self.failed = part is None
        elif self._want == _LITERAL:
            self.failed = char != self._literal[0]
            self._literal = self._literal[1:]
            if not self._literal and not self.failed:
                self._value_ended()
        elif self._want == _ESCAPE:
            self._want = _HEX if char == "u" else _STRING
            self._hex_left = 4
            self.failed = char != "u" and char not in _ESCAPES
        else:
            self.failed = char not in _HEX_DIGITS
            self._hex_left -= 1
            if not self._hex_left:
                self._want = _STRING
        return at if self.failed else at + 1

    def _value_ended(self) -> None:
        self._want = _COMMA_OR_END
        self.done = not self._closers


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a run that may be empty ends."""
    found = pattern.match(text, at)
    return found.end() if found is not None else at
