"""How many of an answer's tokens were reasoning, for usage."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts import Delta, Reasoning


class ReasoningTokens:
    """Counts one choice's, token by token; the marks that begin and end reasoning are none.

    A token whose text is held back counts once that text has come out as reasoning.
    """

    def __init__(self) -> None:
        self.count = 0
        self._within = False
        self._unclear = 0
        """Tokens since the parser last gave something."""

    def token(self, given: Sequence[Delta]) -> None:
        """After each token, with what the reasoning parser made of it."""
        self._unclear += 1
        if given:
            self._count(given, self._unclear if self._within else 1)
            self._within = isinstance(given[-1], Reasoning)
            self._unclear = 0

    def end(self, given: Sequence[Delta]) -> None:
        """After the last one, with what the reasoning parser still had."""
        self._count(given, self._unclear)

    def _count(self, given: Sequence[Delta], tokens: int) -> None:
        if any(isinstance(delta, Reasoning) for delta in given):
            self.count += tokens
