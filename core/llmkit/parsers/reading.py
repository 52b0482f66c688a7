"""A parser as one pass over the text, written as if all of it were there: it waits where it is not."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    FinishReason,
    ToolCallClosed,
    ToolCallOpened,
    held_back,
)
from llmkit.parsers.json_scanner import JsonScanner

_SPACE = re.compile(r"\s*")

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of the pass; it yields where it needs more text."""


class Malformed(Exception):
    """What came, or that no more came, is not the format."""


class CallReader:
    """An output parser: passes text on up to an opener, then lets ``read_calls`` of its format read.

    What is read is kept until a call opens or closes: if the format turns out not to be kept to, all since
    then is content after all.
    """

    def __init__(self, openers: Sequence[str]) -> None:
        self._openers = tuple(sorted(openers, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._openers)))
        self._longest = len(self._openers[0])
        self._text = ""
        self._at = 0
        self._ended = False
        self._kept: list[str] = []
        """What was read and may yet become content."""
        self._space: list[str] = []
        """Whitespace at the start or after a call: syntax if a call follows."""
        self._after_syntax = True
        self._any_call = self._sure_since_opener = False
        self._deltas: list[Delta] = []
        self._pass = self._read()
        next(self._pass)

    def feed(self, text: str) -> list[Delta]:
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._go_on()

    def finish(self, reason: FinishReason) -> list[Delta]:
        self._ended = True
        return self._go_on()

    def read_calls(self, opener: str) -> Reading[None]:
        """Read what follows an opener. If that ends in a bracket, the bracket is still to be read.

        :raises Malformed: from here on, or since the last call if there was one, it is content.
        """
        raise NotImplementedError

    # What formats read with.

    def peek(self) -> Reading[str]:
        """The next character, empty at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def skip_space(self) -> Reading[str]:
        """The first character after whitespace, empty at the end."""
        if not (char := (yield from self.peek())).isspace():
            return char
        yield from self.run(_SPACE)
        return (yield from self.peek())

    def expect(self, text: str) -> Reading[None]:
        """Read exactly this, or none of it."""
        if not (yield from self.accept(text)):
            raise Malformed

    def accept(self, *texts: str) -> Reading[str]:
        """Read whichever of these comes, none of which begins another; empty if none does."""
        return self._take(len((yield from self.coming(*texts))))

    def coming(self, *texts: str) -> Reading[str]:
        """As ``accept``, and it is still to be read."""
        most = max(map(len, texts))
        while True:
            rest = self._text[self._at : self._at + most]
            for text in texts:
                if rest.startswith(text):
                    return text
            if self._ended or len(rest) == most or not any(text.startswith(rest) for text in texts):
                return ""
            yield

    def there(self, pattern: re.Pattern[str]) -> str:
        """What has come of a pattern whose matches more text cannot change; empty if none has."""
        found = pattern.match(self._text, self._at)
        return "" if found is None else self._take(len(found.group()))

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """All that comes of a pattern for any number of characters of one kind."""
        pieces = []
        while (yield from self.peek()) and (found := pattern.match(self._text, self._at)):
            if not found.group():
                break
            pieces.append(self._take(len(found.group())))
        return "".join(pieces)

    def unread(self) -> None:
        """What is kept was not of the calls: it is read again as what follows them."""
        count = sum(map(len, self._kept))
        if count > self._at:
            self._text, self._at = "".join(self._kept) + self._text[self._at :], count
        self._at -= count
        self._kept.clear()

    def json_value(self, *, as_arguments: bool = False) -> Reading[str]:
        """One JSON value, after whitespace; as arguments its text goes out as it comes, and none is given."""
        if not (yield from self.skip_space()):
            raise Malformed
        scanner = JsonScanner()
        pieces = []
        while not scanner.done:
            if not (yield from self.peek()):
                raise Malformed
            end, text = scanner.scan(self._text, self._at)
            self._take(end - self._at)
            if as_arguments:
                self.arguments(text)
            else:
                pieces.append(text)
            if scanner.failed:
                raise Malformed
        return "".join(pieces)

    def opened(self, name: str) -> None:
        self._sure(ToolCallOpened(name))

    def arguments(self, text: str) -> None:
        if text:
            self._sure(ArgumentsDelta(text))

    def closed(self) -> None:
        self._sure(ToolCallClosed())

    def syntax(self) -> None:
        """What was read last belongs to the calls, whatever comes."""
        self._kept.clear()

    # The pass.

    def _go_on(self) -> list[Delta]:
        next(self._pass, None)
        deltas, self._deltas = self._deltas, []
        return deltas

    def _read(self) -> Reading[None]:
        while opener := (yield from self._content()):
            self._sure_since_opener = False
            self._take(len(opener) - (opener[-1] in "[{"))
            try:
                yield from self.read_calls(opener)
            except Malformed:
                self.unread()
                if not self._sure_since_opener:
                    self._pass_on(len(opener))
            self._kept.clear()
        if self._space and not self._any_call:
            self._deltas.append(Content("".join(self._space)))

    def _content(self) -> Reading[str]:
        """Pass text on up to an opener, which comes next then; empty at the end."""
        while True:
            found = self._pattern.search(self._text, self._at)
            if found is not None and not self._may_be_longer(found):
                self._pass_on(found.start() - self._at)
                return found.group()
            certain = len(self._text)
            if not self._ended:
                certain -= held_back(self._text[max(self._at, certain - self._longest) :], self._openers)
            self._pass_on((certain if found is None else found.start()) - self._at)
            if self._ended:
                return ""
            yield

    def _may_be_longer(self, found: re.Match[str]) -> bool:
        """Whether the opener found may be the beginning of another that has not come as a whole."""
        rest = self._text[found.start() : found.start() + self._longest]
        return not self._ended and any(
            len(opener) > len(rest) and opener.startswith(rest) for opener in self._openers
        )

    def _pass_on(self, count: int) -> None:
        """Give characters as content, but whitespace after syntax only with what follows."""
        text = self._text[self._at : self._at + count]
        self._at += count
        if self._after_syntax:
            rest = text.lstrip()
            if len(rest) < len(text):
                self._space.append(text[: len(text) - len(rest)])
            if not rest:
                return
            self._after_syntax = False
            text = "".join(self._space) + rest
            self._space.clear()
        if text:
            self._deltas.append(Content(text))

    def _take(self, count: int) -> str:
        """Read so many characters."""
        text = self._text[self._at : self._at + count]
        self._at += count
        self._kept.append(text)
        return text

    def _sure(self, delta: Delta) -> None:
        """What is kept was syntax, or is in this."""
        self._kept.clear()
        self._space.clear()
        self._any_call = self._sure_since_opener = True
        self._after_syntax = isinstance(delta, ToolCallClosed)
        self._deltas.append(delta)
