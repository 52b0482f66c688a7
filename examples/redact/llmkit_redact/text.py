"""Takes matches of bounded length out of a text that arrives in pieces.

Whether a match begins at a character follows from that character, the one before it and a bounded number
behind. So a character is passed on once those are there, or once what is there cannot become a match: the
result is that of the whole text, however it is cut.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmkit.contracts import held_back


@dataclass(frozen=True)
class Rule:
    """One kind of thing to take out."""

    pattern: re.Pattern[str]
    """Sees one character before a match and none behind it but to know that it has ended."""
    undecided: Callable[[str], int]
    """How many characters at the end of a text may belong to a match that is not complete."""
    by: str
    valid: Callable[[str], bool] = lambda found: True


class Redactor:
    """One text's; owns what of it is not decided."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._text = ""
        self._at = 0
        """Where it is undecided from; what is before is context."""

    def feed(self, text: str) -> str:
        self._text += text
        return self._pass(
            len(self._text) - max((rule.undecided(self._text) for rule in self._rules), default=0)
        )

    def finish(self) -> str:
        return self._pass(len(self._text))

    def _pass(self, certain: int) -> str:
        """The text up to ``certain`` without its matches."""
        shown = []
        while self._at < certain:
            end, by = self._match(self._at)
            shown.append(by if end else self._text[self._at])
            self._at = end or self._at + 1
        kept = max(0, self._at - 1)
        self._text, self._at = self._text[kept:], self._at - kept
        return "".join(shown)

    def _match(self, at: int) -> tuple[int, str]:
        """The end of what is to be taken out there and what stands for it; 0 if nothing is."""
        for rule in self._rules:
            found = rule.pattern.match(self._text, at)
            if found is not None and rule.valid(found[0]):
                return found.end(), rule.by
        return 0, ""


def _luhn(found: str) -> bool:
    """Whether the digits' check sum is a card number's."""
    digits = [int(char) for char in reversed(found) if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _trailing(alphabet: str, most: int, first: str) -> Callable[[str], int]:
    """The end of a text that is made of ``alphabet`` and begins with one of ``first``, if it is no longer."""

    def undecided(text: str) -> int:
        tail = text[-most:]
        run = tail[len(tail.rstrip(alphabet)) :]
        return len(run.lstrip("".join(set(alphabet) - set(first))))

    return undecided


_LOCAL = string.ascii_letters + string.digits + "._%+-"
_EMAIL = r"[\w.%+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,4}"
LONGEST_EMAIL = 64 + 1 + 63 + 4 * 64
_CARD = r"(?<!\d)(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}([ -])\d{6}\2\d{5})(?!\d)"
LONGEST_CARD = 20
"""With what tells that it has ended."""

EMAIL = Rule(
    re.compile(_EMAIL, re.ASCII | re.IGNORECASE), _trailing(_LOCAL + "@", LONGEST_EMAIL, _LOCAL), "[email]"
)
CARD = Rule(
    re.compile(_CARD, re.ASCII), _trailing(string.digits + " -", LONGEST_CARD, string.digits), "[card]", _luhn
)
CARD_AS_NUMBER = Rule(
    re.compile(r"(?<![\d.eE+-])\d{13,19}(?![\d.eE])", re.ASCII),
    _trailing(string.digits, LONGEST_CARD, string.digits),
    '"[card]"',
    _luhn,
)
"""In JSON, outside its strings."""


def word(text: str) -> Rule:
    return Rule(re.compile(re.escape(text)), lambda so_far: held_back(so_far, [text]), "[redacted]")
