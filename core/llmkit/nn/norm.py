"""RMSNorm over the bound operations."""

from __future__ import annotations

import torch
from torch import Tensor

from llmkit.contracts import Ops
from llmkit.nn.weights import Vector, WeightMap


class RMSNorm:
    """Root-mean-square norm with a weight. Since 0.1."""

    __slots__ = ("_add_rms_norm", "_rms_norm", "_vector", "eps")

    def __init__(self, ops: Ops, size: int, eps: float, dtype: torch.dtype, device: str) -> None:
        self.eps = eps
        self._vector = Vector(size, dtype, device)
        self._rms_norm = ops.rms_norm
        self._add_rms_norm = ops.add_rms_norm

    def map_weights(self, weights: WeightMap, name: str) -> None:
        weights.add(f"{name}.weight", tuple(self._vector.value.shape), self._vector.take)

    def __call__(self, x: Tensor) -> Tensor:
        """``[tokens, size] -> [tokens, size]``"""
        return self._rms_norm(x, self._vector.value, self.eps)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that it takes."""
        return self._vector.value.nbytes

    def heads(self, x: Tensor) -> Tensor:
        """Norm of each head of ``[tokens, heads, size]``, as a fresh tensor."""
        return self._rms_norm(x.reshape(-1, x.shape[-1]), self._vector.value, self.eps).view(x.shape)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add ``x`` into ``residual`` in place and return the norm of the sum."""
        return self._add_rms_norm(x, residual, self._vector.value, self.eps)


__all__ = ["RMSNorm"]
