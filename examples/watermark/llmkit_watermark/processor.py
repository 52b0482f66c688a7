"""The processor: raises the logits of the tokens that are green after each row's last token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from llmkit.contracts import BatchChange, ProcessorEnv, ProcessorRow
from llmkit_watermark.green import greens


class Watermark:
    """Keeps the delta of every request at hand; which tokens are green follows from the row alone."""

    argmax_invariant = False

    def __init__(self, env: ProcessorEnv, key: int, gamma: float) -> None:
        self._vocabulary = np.arange(env.vocab_size)
        self._key = key
        self._gamma = gamma
        self._deltas: dict[str, float] = {}

    def update(self, change: BatchChange) -> None:
        for request_id in change.removed:
            del self._deltas[request_id]
        for request_id, delta, _ in change.added:
            self._deltas[request_id] = delta

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        for row in rows:
            green = greens(row.tokens[-1:], self._vocabulary, self._key, self._gamma)
            logits[row.row, torch.from_numpy(green)] += self._deltas[row.request_id]
