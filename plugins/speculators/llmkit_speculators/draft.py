"""Speculator ``draft``: a smaller model of the same vocabulary writes ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmkit import StartupError
from llmkit.contracts import DraftEngine, DraftRequest, SpeculatorSpec

PADDING = 1024
"""Embeddings of one tokenizer are padded differently in models of different sizes, by less than this."""


def open_drafter(spec: SpeculatorSpec) -> DraftModel:
    """Load ``--draft-model``.

    :raises StartupError: it cannot be served here, or has another vocabulary.
    """
    wanted = spec.config.speculation
    assert wanted.draft_model is not None, "it refuses otherwise"
    engine = spec.open_draft(wanted.draft_model)
    if abs(engine.vocab_size - spec.vocab_size) >= PADDING:
        engine.close()
        raise StartupError(
            f"--draft-model {wanted.draft_model}: it knows {engine.vocab_size} tokens and the model "
            f"{spec.vocab_size}; both must have one vocabulary"
        )
    return DraftModel(engine, spec.vocab_size, wanted.num_speculative_tokens)


class DraftModel:
    """Owns the draft engine."""

    def __init__(self, engine: DraftEngine, vocab_size: int, num_drafts: int) -> None:
        """``vocab_size``: of the model that is drafted for."""
        self._engine = engine
        self._vocab_size = vocab_size
        self._num_drafts = num_drafts

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        shorter = [replace(request, most=min(request.most, self._num_drafts)) for request in requests]
        return [self._known(drafts) for drafts in self._engine.propose(shorter)]

    def forget(self, request_ids: Sequence[str]) -> None:
        """What it computed for them stays in its prefix cache until the room is needed."""

    def close(self) -> None:
        self._engine.close()

    def _known(self, drafts: list[int]) -> list[int]:
        """Those before the first that is only padding to the model."""
        for index, token in enumerate(drafts):
            if token >= self._vocab_size:
                return drafts[:index]
        return drafts
