"""A layer's attention: hands q, k and v to the backend and gives its result."""

from __future__ import annotations

import torch
from torch import Tensor

from llmkit.contracts import AttentionSpec, LayerInputs, StepContext


class AttentionOutput:
    """Room for one layer's result, shared by all layers of a model: the next layer overwrites it.

    Grows to the largest step seen and keeps its address from then on.
    """

    __slots__ = ("_buffer", "_view")

    def __init__(self, num_heads: int, head_size: int, dtype: torch.dtype, device: str) -> None:
        self._buffer = torch.empty(0, num_heads, head_size, dtype=dtype, device=device)
        self._view = self._buffer

    def rows(self, tokens: int) -> Tensor:
        """``[tokens, heads, head_size]``; the same object while ``tokens`` stays the same."""
        if self._view.shape[0] != tokens:
            if self._buffer.shape[0] < tokens:
                self._buffer = self._buffer.new_empty(tokens, *self._buffer.shape[1:])
            self._view = self._buffer[:tokens]
        return self._view


class Attention:
    """One attention layer. ``index`` is its place in the model's ``attention`` tuple. Since 0.1."""

    __slots__ = ("_output", "index", "spec")

    def __init__(self, index: int, spec: AttentionSpec, output: AttentionOutput) -> None:
        self.index = index
        self.spec = spec
        self._output = output

    def __call__(self, q: Tensor, k: Tensor | None, v: Tensor | None, ctx: StepContext) -> Tensor:
        """q ``[tokens, heads, head_size]``, k and v likewise -> ``[tokens, heads * head_size_v]``.

        The result is valid until the next layer's call.
        """
        tokens = q.shape[0]
        out = self._output.rows(tokens)
        ctx.backend.attend(LayerInputs(self.index, q, k, v), ctx.plan, out)
        return out.view(tokens, -1)


__all__ = ["Attention", "AttentionOutput"]
