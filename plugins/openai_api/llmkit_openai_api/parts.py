"""An answer as parts that follow each other: text, reasoning and calls, each with the tokens that made it.

Whole and streamed answers of routes that number their parts are made of the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Event,
    Finished,
    FinishReason,
    PositionLogprobs,
    Reasoning,
    Tokenizer,
    Tokens,
    ToolCallClosed,
    ToolCallOpened,
)

Kind = Literal["text", "reasoning", "call"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A part begins; the one before it has been closed."""

    kind: Kind
    name: str = ""
    """Of the function that is called."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The open part goes on."""

    text: str
    logprobs: Sequence[PositionLogprobs] = ()
    """Of text, and where they were asked for: those of the tokens whose first character it shows."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The open part ends."""

    complete: bool
    """False: the answer was cut off within it."""


PartStep = Opened | Grown | Closed


class Parts:
    """Makes steps of one choice's events; owns which part is open."""

    def __init__(self, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._open: Kind | None = None
        self._unshown = _UnshownTokens(tokenizer) if with_logprobs else None

    def feed(self, event: Event) -> list[PartStep]:
        match event:
            case Tokens() if self._unshown is not None:
                self._unshown.add(event.logprobs)
            case Content():
                return self._grow("text", event.text)
            case Reasoning():
                return self._grow("reasoning", event.text)
            case ToolCallOpened():
                self._hide()
                steps = [*self._next(), Opened("call", event.name)]
                self._open = "call"
                return steps
            case ArgumentsDelta():
                return self._grow("call", event.text)
            case ToolCallClosed():
                self._hide()
                return self.close(complete=True)
            case Finished():
                return self._next() if event.reason is not FinishReason.LENGTH else self.close(complete=False)
        return []

    def close(self, *, complete: bool) -> list[PartStep]:
        """End the part that is open, if one is."""
        was_open, self._open = self._open, None
        return [] if was_open is None else [Closed(complete)]

    def _hide(self) -> None:
        if self._unshown is not None:
            self._unshown.clear()

    def _next(self) -> list[PartStep]:
        """Something else follows: a call that nobody has closed breaks off."""
        return self.close(complete=self._open != "call")

    def _grow(self, kind: Kind, text: str) -> list[PartStep]:
        if not text:
            return []
        steps: list[PartStep] = []
        if kind != self._open:
            steps = [*self._next(), Opened(kind)]
            self._open = kind
        shown = () if self._unshown is None else self._unshown.take(text, begins=bool(steps))
        return [*steps, Grown(text, shown if kind == "text" else ())]


class _UnshownTokens:
    """Tokens whose text has not shown yet, or never will: marks around reasoning and calls, ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[tuple[bytes, PositionLogprobs | None]] = []
        """What of a token's text has not shown; without logprobs where its beginning has."""

    def add(self, positions: Sequence[PositionLogprobs]) -> None:
        for position in positions:
            self._tokens.append((self._tokenizer.token_bytes(position.sampled.token_id), position))

    def clear(self) -> None:
        """None of them will show."""
        self._tokens.clear()

    def take(self, text: str, *, begins: bool) -> list[PositionLogprobs]:
        """Those that made ``text``; those before them show no more. Where it ``begins`` a part, a mark that
        does not show may stand before it and hold the same text.
        """
        data = text.encode()
        waiting = b"".join(part for part, _ in self._tokens)
        at = waiting.rfind(data) if begins else waiting.find(data)
        if at < 0:  # the text differs from its bytes, such as half a character
            tokens, self._tokens = self._tokens, []
            return [position for _, position in tokens if position is not None]
        end, begin = at + len(data), 0
        taken: list[PositionLogprobs] = []
        rest: list[tuple[bytes, PositionLogprobs | None]] = []
        for part, position in self._tokens:
            after = begin + len(part)
            if begin >= end:
                rest.append((part, position))
            elif after > at:
                if position is not None:
                    taken.append(position)
                if after > end:
                    rest.append((part[end - begin :], None))
            begin = after
        self._tokens = rest
        return taken
