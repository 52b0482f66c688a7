"""Stop strings, found wherever the text happens to be cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.text import held_back


class StopMatcher:
    """Passes one choice's text on until one of ``stops`` is complete; owns the text it holds back.

    The match that is complete first wins; of those that complete at the same character, the longest. So
    the result depends on the text alone, never on its pieces. What may yet become a stop string is
    held back, nothing more.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include_in_output
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text; nothing may be fed after that."""

    def feed(self, text: str, *, armed: bool = True) -> str:
        """The text that is certain to be output now.

        A match that is complete within a piece fed unarmed does not count (``min_tokens``); one that
        only begins there does.
        """
        if not self._stops:
            return text
        unarmed = len(self._held) if armed else len(self._held) + len(text)
        pending = self._held + text
        match = self._first_match(pending, unarmed)
        if match is not None:
            start, end = match
            self.matched = pending[start:end]
            self._held = ""
            return pending[: end if self._include else start]
        certain = len(pending) - held_back(pending, self._stops)
        self._held = pending[certain:]
        return pending[:certain]

    def finish(self) -> str:
        """The end without a match: what was held back is text after all."""
        rest, self._held = self._held, ""
        return rest

    def _first_match(self, pending: str, after: int) -> tuple[int, int] | None:
        """(start, end) of the match with the least end beyond ``after``, the longest of those."""
        ends = []
        for stop in self._stops:
            start = pending.find(stop, max(0, after - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), start))
        if not ends:
            return None
        end, start = min(ends)
        return start, end
