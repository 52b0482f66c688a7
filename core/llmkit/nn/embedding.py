"""Token embedding and output head, tied or apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from llmkit.contracts import LinearMethod, WeightRef
from llmkit.nn.linear import Linear
from llmkit.nn.weights import WeightMap


class Embedding:
    """A table of its own: a dense ``[vocab, hidden]`` tensor. Since 0.1."""

    __slots__ = ("table",)

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: str) -> None:
        self.table = torch.empty(vocab_size, hidden_size, dtype=dtype, device=device)

    def map_weights(self, weights: WeightMap, name: str) -> None:
        weights.add(f"{name}.weight", tuple(self.table.shape), self._take)

    def __call__(self, ids: Tensor) -> Tensor:
        """``ids [tokens] -> [tokens, hidden]``"""
        return functional.embedding(ids, self.table)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.table.nbytes

    def _take(self, ref: WeightRef) -> None:
        value = ref.dense(self.table.dtype)
        # a view of the mapped file serves as it is; only another device needs a copy
        self.table = value if value.device == self.table.device else self.table.copy_(value)


class LMHead(Linear):
    """The linear layer from hidden states to logits. Since 0.1."""

    __slots__ = ()

    def __init__(
        self,
        method: LinearMethod,
        vocab_size: int,
        hidden_size: int,
        *,
        name: str = "lm_head",
        bias: bool = False,
        tied: bool = False,
    ) -> None:
        """:param tied: it is the embedding too, so that :meth:`embed` works."""
        super().__init__(method, name, hidden_size, (vocab_size,), bias=bias, tied=tied)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden] -> float32 [rows, vocab]``"""
        return self.apply(hidden).float()


__all__ = ["Embedding", "LMHead"]
