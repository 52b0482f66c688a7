"""JSON whose strings are redacted one by one, as they read and not as they are spelt; it stays JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llmkit_redact.text import CARD, CARD_AS_NUMBER, Redactor, Rule

_PLAIN = re.compile(r'[^"\\]+')
_OUTSIDE = re.compile(r'[^"]+')
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|u[0-9a-fA-F]{{4}}|[^u]|)", re.DOTALL)
_MAY_GROW = re.compile(rf"\\(?:u[0-9a-fA-F]{{0,3}}|{_HIGH}.*|)", re.DOTALL)
"""What of an escape may be there while the rest is still to come; half a character may get its other half."""
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_HALF = re.compile("[\ud800-\udfff]")


class ArgumentsRedactor:
    """The arguments of one call."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._outside = Redactor([CARD_AS_NUMBER] if CARD in rules else [])
        self._inside: Redactor | None = None
        """Of the string that is open."""
        self._text = ""

    def feed(self, text: str) -> str:
        return self._read(self._text + text, ended=False)

    def finish(self) -> str:
        shown = self._read(self._text, ended=True)
        return shown + (self._outside.finish() if self._inside is None else _spelt(self._inside.finish()))

    def _read(self, text: str, *, ended: bool) -> str:
        shown, at = [], 0
        while at < len(text):
            if self._inside is None:
                found = _OUTSIDE.match(text, at)
                if found is None:
                    shown += [self._outside.finish(), '"']
                    self._inside, at = Redactor(self._rules), at + 1
                    continue
                shown.append(self._outside.feed(found[0]))
            elif text[at] == '"':
                shown += [_spelt(self._inside.finish()), '"']
                self._inside, at = None, at + 1
                continue
            else:
                found = _PLAIN.match(text, at) or _escape(text, at, ended)
                if found is None:
                    break
                shown.append(_spelt(self._inside.feed(_read_as(found[0]))))
            at = found.end()
        self._text = text[at:]
        return "".join(shown)


def _escape(text: str, at: int, ended: bool) -> re.Match[str] | None:
    """The escape that begins there, None while it may go on."""
    rest = text[at : at + _LONGEST_ESCAPE]
    if not ended and len(rest) < _LONGEST_ESCAPE and _MAY_GROW.fullmatch(rest):
        return None
    return _ESCAPE.match(text, at)


def _read_as(spelt: str) -> str:
    """What a part of a JSON string reads; a backslash that escapes nothing is one."""
    try:
        text: str = json.loads(f'"{spelt}"', strict=False)
    except ValueError:
        return spelt
    return text


def _spelt(text: str) -> str:
    """As it is spelt within a JSON string."""
    spelt = json.dumps(text, ensure_ascii=False)[1:-1]
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", spelt)
