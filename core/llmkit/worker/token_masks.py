"""Grammar masks: which tokens each constrained row may sample, a bit a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmkit.errors import EngineError

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_PIECE = 1 << 22
"""Tokens unpacked at a time, a byte each."""


@dataclass(slots=True)
class TokenMasks:
    """Masks of some rows of logits, packed."""

    rows: IntArray
    """[masks]: the row that each belongs to."""
    packed: np.ndarray[Any, np.dtype[np.uint8]]
    """[masks, bytes]; bit ``i`` of byte ``j`` set: token ``8 j + i`` is allowed."""
    vocab_size: int

    def apply(self, logits: Tensor) -> None:
        """Put minus infinity where a row's mask allows nothing; ``logits`` [rows, vocab]."""
        step = max(1, _PIECE // self.vocab_size)
        for start in range(0, len(self.rows), step):
            packed = self.packed[start : start + step]
            bits = np.unpackbits(packed, axis=1, count=self.vocab_size, bitorder="little")
            forbidden = (torch.from_numpy(bits) == 0).to(logits.device)
            for row, banned in zip(self.rows[start : start + step].tolist(), forbidden, strict=True):
                logits[row].masked_fill_(banned, -torch.inf)


def read_masks(masks: bytes, rows: list[int], vocab_size: int) -> TokenMasks:
    """From int32 ``[len(rows), ceil(vocab_size / 32)]``, little-endian.

    :raises EngineError: the bytes are not that many.
    """
    words = -(-vocab_size // 32)
    if len(masks) != len(rows) * words * 4:
        raise EngineError(
            f"token masks: {len(masks)} bytes for {len(rows)} rows; a vocabulary of {vocab_size} takes "
            f"{words * 4} bytes a row"
        )
    packed = np.frombuffer(masks, np.uint8).reshape(len(rows), words * 4)
    return TokenMasks(np.array(rows, np.int64), packed, vocab_size)
