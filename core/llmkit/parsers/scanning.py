"""Reading a text that arrives in pieces: marks to stop at, heads of calls to recognize, prose between."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    FinishReason,
    ToolCallClosed,
    ToolCallOpened,
    held_back,
)

MAX_SPACE = 256
SPACE = rf"\s{{0,{MAX_SPACE}}}+"
"""Atom of a head: whitespace that may be there, all of it."""
NAME = r"([^\s<>{}\[\]\"'|][^\n<>{}\[\]\"'|]{0,255}+)"
"""Atom of a head: a name between marks."""


class Marks:
    """Texts to stop at, none of which begins another."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self._pattern = re.compile("|".join(map(re.escape, texts)))
        self._first = re.compile("[" + re.escape("".join({text[0] for text in texts})) + "]")
        self._tail = max(map(len, texts)) - 1

    def find(self, text: str, at: int) -> tuple[int, str]:
        """Where the first one is, and which; or up to where there is none for certain, and nothing."""
        found = self._pattern.search(text, at)
        if found is not None:
            return found.start(), found.group()
        tail = max(at, len(text) - self._tail)
        if self._first.search(text, tail) is None:
            return len(text), ""
        return len(text) - held_back(text[tail:], self.texts), ""


def literal(text: str) -> tuple[str, ...]:
    """Atoms of a head that are this text."""
    return tuple(map(re.escape, text))


class Head:
    """What opens a call, as atoms: expressions of which every prefix matches too, such as one character.

    The last must be one that more text cannot change: a character or a look ahead.
    """

    def __init__(self, *parts: str | tuple[str, ...]) -> None:
        atoms = [atom for part in parts for atom in ((part,) if isinstance(part, str) else part)]
        self._full = re.compile("".join(atoms))
        self._begun = re.compile("".join(f"(?:{atom}" for atom in atoms) + r"|\Z)" * len(atoms) + r"\Z")
        self.groups = self._full.groups

    def match(self, text: str, at: int) -> re.Match[str] | None:
        return self._full.match(text, at)

    def fits(self, text: str) -> bool:
        """Whether it may come where this text does."""
        return self.match(text, 0) is not None or self.may_begin(text, 0)

    def may_begin(self, text: str, at: int) -> bool:
        """Whether all that is left of ``text`` may be its beginning."""
        return self._begun.match(text, at) is not None


def matched(heads: Iterable[Head], text: str, at: int) -> re.Match[str] | None:
    """The first of them that is there."""
    for head in heads:
        if found := head.match(text, at):
            return found
    return None


def may_begin(heads: Iterable[Head], text: str, at: int) -> bool:
    return any(head.may_begin(text, at) for head in heads)


@dataclass(frozen=True)
class Place:
    """Where a call may stand: alone, or with others between two marks."""

    head: Head
    """From the opening mark to where the first call's arguments begin; group 1 is its name."""
    again: Sequence[Head] = ()
    """As ``head``, for another call behind one."""
    between: Sequence[Head] = ()
    """What may stand behind a call and means nothing."""
    ends: Sequence[Head] = ()
    """What ends the place; without any, a call does."""


class Machine:
    """A parser made of states: methods that read on from the cursor and say whether they got anywhere.

    Each format adds what it reads behind a call's head, ``_begin``, and goes on ``_behind`` the call.
    """

    def __init__(self, openers: Sequence[str], places: Sequence[Place]) -> None:
        self._text, self._at = "", 0
        self._out: list[Delta] = []
        self._blank: list[str] = []  # whitespace at the edge of a call: syntax unless text joins it
        self._at_edge = True  # at the beginning, or behind a call
        self._calls = 0
        self._openers = Marks(*openers)
        self._places = {mark: [place for place in places if place.head.fits(mark)] for mark in openers}
        self._place = places[0]
        self._state: Callable[[], bool] = self._prose

    def feed(self, text: str) -> list[Delta]:
        self._text = self._text[self._at :] + text
        self._at = 0
        while self._state():
            pass
        return self._taken()

    def finish(self, reason: FinishReason) -> list[Delta]:
        if self._state in (self._prose, self._behind):
            self._content(self._text[self._at :])
        # Else it is within a call, where what was not read for want of more is a mark cut off.
        if not self._calls:
            self._out += [Content(text) for text in self._blank]
        self._text, self._at, self._blank = "", 0, []
        return self._taken()

    def _accepts(self, head: re.Match[str]) -> bool:
        """Whether a head in the midst of prose opens a call."""
        return True

    def _begin(self, head: re.Match[str]) -> bool:
        """Read a call's head."""
        raise NotImplementedError

    def _prose(self) -> bool:
        at, mark = self._openers.find(self._text, self._at)
        if not mark:
            self._pass_on(at)
            return False
        for place in self._places[mark]:
            if head := place.head.match(self._text, at):
                self._pass_on(at)
                if self._accepts(head):
                    self._place = place
                    return self._begin(head)
            elif place.head.may_begin(self._text, at):
                self._pass_on(at)
                return False
        self._pass_on(at + len(mark))
        return True

    def _behind(self) -> bool:
        """Behind a call, where another one or the end of their place may follow."""
        place = self._place
        if head := matched(place.again, self._text, self._at):
            return self._begin(head)
        if mark := matched(place.between, self._text, self._at):
            return self._go(self._behind, mark.end())
        if end := matched(place.ends, self._text, self._at):
            return self._go(self._prose, end.end())
        if may_begin((*place.again, *place.between, *place.ends), self._text, self._at):
            return False
        return self._go(self._prose, self._at)

    def _go(self, state: Callable[[], bool], at: int) -> bool:
        self._state, self._at = state, at
        return True

    def _pass_on(self, end: int) -> None:
        """What comes up to there is content."""
        self._content(self._text[self._at : end])
        self._at = end

    def _content(self, text: str) -> None:
        if not text:
            return
        if self._at_edge:
            self._blank.append(text)
            if text.isspace():
                return
            self._out += [Content(blank) for blank in self._blank]
            self._blank.clear()
            self._at_edge = False
        else:
            self._out.append(Content(text))

    def _open(self, name: str) -> None:
        self._blank.clear()
        self._at_edge = False
        self._out.append(ToolCallOpened(name))
        self._calls += 1

    def _arguments(self, text: str) -> None:
        if text:
            self._out.append(ArgumentsDelta(text))

    def _close(self) -> None:
        self._out.append(ToolCallClosed())
        self._at_edge = True

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _taken(self) -> list[Delta]:
        taken, self._out = self._out, []
        return taken
