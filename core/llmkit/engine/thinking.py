"""Where a request's answer is in its reasoning: a grammar holds behind it, and a budget ends it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from llmkit.messages import Thinking

BLANKS_BEFORE = 2
"""So many may stand before what begins reasoning; what comes after more is text of the answer."""


class Phase(Enum):
    OPENING = auto()
    """Reasoning may begin here."""
    REASONING = auto()
    CLOSING = auto()
    """Its budget is used up: the end is being written."""
    ANSWERING = auto()


class Place(NamedTuple):
    """Where an answer is; a new one for each token, so that looking ahead undoes nothing."""

    phase: Phase
    text: bytes = b""
    """The end of what was written, as much as may begin a marker."""
    recent: tuple[int, ...] = ()
    """The last tokens of the reasoning, as many as may begin the end."""
    spent: int = 0
    """Tokens of reasoning so far."""
    written: int = 0
    """Tokens of the end that are there, while ``CLOSING``."""
    waits: bool = False
    """A grammar has not begun: there was reasoning, and no end as it should be."""
    blanks: int = 0
    """So many newlines may still come before the grammar begins."""

    @property
    def constrained(self) -> bool:
        """Whether a grammar, if there is one, holds here."""
        return self.phase is Phase.OPENING or (self.phase is Phase.ANSWERING and not self.waits)


class ThinkingRules:
    """How one request's reasoning goes on from place to place; immutable.

    Markers are looked for in the text, not in the tokens: a model may write one in other tokens than the
    tokenizer would, together with what stands around it.
    """

    def __init__(self, thinking: Thinking, texts: Sequence[bytes], *, grammar: bool) -> None:
        """``texts``: of each token. With a ``grammar`` reasoning begins with ``thinking.start`` or never."""
        self._thinking = thinking
        self._texts = texts
        self._grammar = grammar
        self._again = thinking.again and not grammar
        self._answering = thinking.ends[: thinking.answering]
        self._blanks = thinking.blanks if grammar else 0
        self._kept = max(map(len, (*thinking.starts, *thinking.ends))) + BLANKS_BEFORE

    def first(self) -> Place:
        match self._thinking.first:
            case "reasoning":
                return self._begin(Place(Phase.OPENING))
            case "either" if self.start is not None or not self._grammar:
                return Place(Phase.OPENING)
            case _:
                return Place(Phase.ANSWERING)

    @property
    def start(self) -> int | None:
        """What may come as the first token although the grammar does not know it."""
        return self._thinking.start

    def forced(self, place: Place) -> int | None:
        """The one token that may come."""
        return self._thinking.end[place.written] if place.phase is Phase.CLOSING else None

    def after(self, place: Place, token: int) -> Place:
        if place.phase is Phase.CLOSING:
            written = place.written + 1
            if written < len(self._thinking.end):
                return place._replace(written=written)
            return Place(Phase.ANSWERING, spent=place.spent, blanks=self._blanks)
        if place.blanks:
            return place._replace(blanks=_left(place.blanks, self._text_of(token)))
        if place.phase is Phase.ANSWERING and not (place.waits or self._again):
            return place
        old = place.text
        text = old + self._text_of(token)
        kept = text[max(0, len(text) - self._kept) :]
        place = place._replace(text=kept)
        if place.waits and _came(self._answering, old, text):
            behind = text[max(text.rfind(end) + len(end) for end in self._answering if end in text) :]
            return place._replace(phase=Phase.ANSWERING, waits=False, blanks=_left(self._blanks, behind))
        match place.phase:
            case Phase.OPENING:
                return self._opened(place, old + self._text_of(token), token)
            case Phase.REASONING:
                return self._reasoned(place, token, ended=_came(self._thinking.ends, old, text))
            case _:
                return (
                    self._begin(place) if self._again and _came(self._thinking.starts, old, text) else place
                )

    def _opened(self, place: Place, text: bytes, token: int) -> Place:
        if self._grammar:
            return self._begin(place) if token == self.start else Place(Phase.ANSWERING)
        starts = self._thinking.starts
        lead = text[:BLANKS_BEFORE]
        text = text[len(lead) - len(lead.lstrip()) :]
        if text.startswith(starts):
            return self._begin(place)
        if any(start.startswith(text) for start in starts):
            return place
        return place._replace(phase=Phase.ANSWERING)

    def _begin(self, place: Place) -> Place:
        return self._within(place._replace(phase=Phase.REASONING, recent=(), waits=self._grammar))

    def _reasoned(self, place: Place, token: int, *, ended: bool) -> Place:
        kept = len(self._thinking.end) - 1
        recent = (*place.recent, token)[-kept:] if kept else ()
        place = place._replace(spent=place.spent + 1, recent=recent)
        return place._replace(phase=Phase.ANSWERING) if ended else self._within(place)

    def _within(self, place: Place) -> Place:
        """The same, or the beginning of the end: what there is of it is not written again."""
        budget, end = self._thinking.budget, self._thinking.end
        if budget is None or place.spent < budget:
            return place
        recent = place.recent
        written = next(
            size for size in range(len(recent), -1, -1) if recent[len(recent) - size :] == end[:size]
        )
        return place._replace(phase=Phase.CLOSING, written=written)

    def _text_of(self, token: int) -> bytes:
        spelt = self._thinking.spelt.get(token)
        if spelt is not None:
            return spelt
        return self._texts[token] if token < len(self._texts) else b""


def _left(blanks: int, text: bytes) -> int:
    """Of so many newlines those that may come behind ``text``, which are none behind anything else."""
    return 0 if text.strip(b"\n") else max(0, blanks - len(text))


def _came(markers: Sequence[bytes], old: bytes, text: bytes) -> bool:
    """Whether one of them is complete in ``text`` and was not in ``old``, which it goes on from."""
    return any(text.find(marker, max(0, len(old) - len(marker) + 1)) >= 0 for marker in markers)
