"""The family that writes its thinking between tags: one parser, a table entry for each format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from llmkit.contracts import Content, Delta, FinishReason, OutputParser, ParserSpec, Reasoning, held_back

# A newline on each side of a tag is how it is written, and two follow the thinking.
NEWLINES_INSIDE = 1
NEWLINES_AFTER = 2
BLANKS_BEFORE = 2
"""Blank characters that may stand before the first tag."""
SWITCHES = ("enable_thinking", "thinking")
"""Template arguments that switch thinking off."""


@dataclass(frozen=True, slots=True)
class Tags:
    """How one family of models marks its thinking; a :class:`ReasoningFormat`."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    thinks_first: bool = False
    """An output that begins with neither tag, after a prompt that ends with neither, is thinking."""
    anywhere: bool = False
    """Thinking may begin again in the answer: its tags are tokens that no text is made of."""
    wrappers: tuple[tuple[str, str], ...] = ()
    """Pairs of which one may stand around the answer."""
    special_tokens: Sequence[str] = ()
    source: str = ""

    def parser(self, spec: ParserSpec) -> OutputParser:
        return TagParser(self, spec)


class Mode(Enum):
    OPENING = auto()
    """Nothing but blanks so far: a tag may come, else the text is what ``thinks`` says."""
    REASONING = auto()
    ANSWERING = auto()
    """Between the end of thinking and the answer: a wrapper may come."""
    CONTENT = auto()


class TagParser:
    """Text in, ``Reasoning`` and ``Content`` out.

    Each mode's method takes what is certain and says whether to go on: there is text for the next mode.
    """

    def __init__(self, tags: Tags, spec: ParserSpec) -> None:
        # A bare bracket opens calls of some formats; in thinking it is too common to end it.
        openers = tuple(opener for opener in spec.openers if any(c.isalpha() for c in opener))
        self._tags = tags
        self._closers = dict(tags.wrappers)
        self._first = (*tags.starts, *tags.ends, *self._closers)
        self._in_reasoning = Markers((*(f"\n{end}" for end in tags.ends), *tags.ends, *openers))
        self._openers = frozenset(openers)
        self._in_content = self._watched("")
        self._thinks = tags.thinks_first and all(
            spec.template_args.get(name) is not False for name in SWITCHES
        )
        self._mode = Mode.OPENING
        self._newlines = 0
        """So many of those that follow may belong to the last tag."""
        self._text = ""
        """What is not decided: between pieces it is what is held back."""
        self._at = 0
        self._continue(spec.prompt_tail)

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        out: list[Delta] = []
        steps = {
            Mode.OPENING: self._opening,
            Mode.REASONING: self._reasoning,
            Mode.ANSWERING: self._answering,
            Mode.CONTENT: self._content,
        }
        while self._at < len(self._text) and steps[self._mode](out):
            pass
        self._text = self._text[self._at :]
        self._at = 0
        return out

    def finish(self, reason: FinishReason) -> list[Delta]:
        thinking = self._thinks if self._mode is Mode.OPENING else self._mode is Mode.REASONING
        held, self._text = self._text, ""
        return [Reasoning(held) if thinking else Content(held)] if held else []

    def _continue(self, tail: str) -> None:
        """Start where the prompt ends: it may have opened or closed the thinking."""
        found = [
            (tail.rfind(tag) + len(tag), tag) for tag in (*self._tags.starts, *self._tags.ends) if tag in tail
        ]
        if not found:
            return
        end, tag = max(found)
        after = tail[end:]
        self._after_tag(tag)
        self._thinks = tag in self._tags.starts
        if after.strip():
            self._mode, self._newlines = Mode.REASONING if self._thinks else Mode.CONTENT, 0
        else:
            self._newlines = max(0, self._newlines - len(after))
            if self._thinks:
                self._mode = Mode.OPENING

    def _opening(self, out: list[Delta]) -> bool:
        lead = self._text[:BLANKS_BEFORE]
        start = len(lead) - len(lead.lstrip())
        tag = _at(self._text, start, self._first)
        if tag:
            self._at = start + len(tag)
            self._after_tag(tag)
            return True
        if _may_become(self._text, start, self._first):
            return False
        self._mode = Mode.REASONING if self._thinks else Mode.CONTENT
        return True

    def _reasoning(self, out: list[Delta]) -> bool:
        if not self._skip_newlines():
            return False
        marker = self._take(out, Reasoning, self._in_reasoning)
        if marker in self._openers:
            # The call's own parser is to see it.
            self._at -= len(marker)
            self._mode = Mode.CONTENT
        elif marker:
            self._after_tag(marker)
        return bool(marker)

    def _answering(self, out: list[Delta]) -> bool:
        if not self._skip_newlines():
            return False
        wrapper = _at(self._text, self._at, self._closers)
        if wrapper:
            self._at += len(wrapper)
            self._after_tag(wrapper)
        elif _may_become(self._text, self._at, self._closers):
            return False
        else:
            self._mode = Mode.CONTENT
        return True

    def _content(self, out: list[Delta]) -> bool:
        if not self._skip_newlines():
            return False
        marker = self._take(out, Content, self._in_content)
        if marker in self._tags.starts:
            self._after_tag(marker)
        elif marker:
            self._in_content = self._watched("")
        return bool(marker)

    def _after_tag(self, tag: str) -> None:
        if tag in self._tags.starts:
            self._mode, self._newlines = Mode.REASONING, NEWLINES_INSIDE
        elif tag in self._closers:
            self._mode, self._newlines = Mode.CONTENT, NEWLINES_INSIDE
            self._in_content = self._watched(self._closers[tag])
        else:
            self._mode, self._newlines = Mode.ANSWERING, NEWLINES_AFTER

    def _watched(self, closer: str) -> Markers:
        starts = self._tags.starts if self._tags.anywhere else ()
        return Markers((f"\n{closer}", closer, *starts) if closer else starts)

    def _skip_newlines(self) -> bool:
        """Pass those that belong to a tag; whether text follows."""
        while self._newlines and self._text.startswith("\n", self._at):
            self._at += 1
            self._newlines -= 1
        if self._at < len(self._text):
            self._newlines = 0
        return self._at < len(self._text)

    def _take(self, out: list[Delta], kind: type[Reasoning] | type[Content], markers: Markers) -> str:
        """Emit what stands before the first marker and pass that; without one, all that begins none."""
        start, marker = markers.find(self._text, self._at)
        if start > self._at:
            out.append(kind(self._text[self._at : start]))
        self._at = start + len(marker)
        return marker


class Markers:
    """Texts that are looked for together."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._longest = max(map(len, texts), default=0)
        # Of those that begin at the same place the longest is the one.
        self._any = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    def find(self, text: str, at: int) -> tuple[int, str]:
        """Where the first begins and which it is; without one, where the first may begin and nothing."""
        found = self._any.search(text, at) if self._texts else None
        if found:
            return found.start(), found[0]
        tail = text[max(at, len(text) - self._longest) :]
        return len(text) - held_back(tail, self._texts), ""


def _at(text: str, start: int, markers: Iterable[str]) -> str:
    """The marker that stands there, or nothing."""
    return next((marker for marker in markers if text.startswith(marker, start)), "")


def _may_become(text: str, start: int, markers: Iterable[str]) -> bool:
    """Whether what follows is the beginning of a marker."""
    return any(len(text) - start < len(marker) and marker.startswith(text[start:]) for marker in markers)
