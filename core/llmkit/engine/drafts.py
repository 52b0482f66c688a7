"""Tokens to compute ahead: what a speculator guesses and what a grammar leaves no choice about."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts.scheduler import Drafts
from llmkit.contracts.speculator import DraftRequest, Speculator
from llmkit.engine.grammars import GrammarManager
from llmkit.errors import EngineError
from llmkit.messages import AddRequest


class SpeculativeDrafter:
    """Puts a speculator and the grammars together; a ``Drafter``. Owns the speculator."""

    def __init__(self, speculator: Speculator | None, grammars: GrammarManager, vocab_size: int) -> None:
        self._speculator = speculator
        self._grammars = grammars
        self._vocab_size = vocab_size

    def serves(self, request: AddRequest) -> bool:
        return self._speculator is not None or request.grammar is not None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Drafts]:
        """:raises EngineError: the speculator broke its contract."""
        return [
            Drafts(*self._grammars.propose(request.request_id, guess, request.most))
            for request, guess in zip(requests, self._guess(requests), strict=True)
        ]

    def forget(self, request_ids: Sequence[str]) -> None:
        if self._speculator is not None:
            self._speculator.forget(request_ids)

    def close(self) -> None:
        if self._speculator is not None:
            self._speculator.close()

    def _guess(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        if self._speculator is None:
            return [[] for _ in requests]
        guesses = self._speculator.propose(requests)
        if len(guesses) != len(requests):
            raise EngineError(f"the speculator answered {len(guesses)} of {len(requests)} requests")
        for request, guess in zip(requests, guesses, strict=True):
            if guess and not (
                len(guess) <= request.most and min(guess) >= 0 and max(guess) < self._vocab_size
            ):
                raise EngineError(
                    f"the speculator proposed {guess} for request {request.request_id!r}; allowed are "
                    f"{request.most} token ids below {self._vocab_size}"
                )
        return guesses
