"""Linear layers over the chosen linear method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from llmkit.contracts import LinearMethod, LinearSpec, WeightRef
from llmkit.nn.weights import WeightMap


class Linear:
    """One linear layer, perhaps fused from parts that a checkpoint stores apart (q, k, v).

    Owns the method's weights for it. ``apply`` is the hot path. Since 0.1.
    """

    __slots__ = ("_method", "apply", "spec", "weights")

    def __init__(
        self,
        method: LinearMethod,
        name: str,
        in_features: int,
        out_parts: Sequence[int],
        *,
        bias: bool = False,
        tied: bool = False,
    ) -> None:
        """:param tied: it is the embedding too, so that :meth:`embed` works."""
        self.spec = LinearSpec(name, in_features, tuple(out_parts), bias, tied)
        self.weights = method.create(self.spec)
        self._method = method
        self.apply = partial(method.apply, self.weights)
        """``x [tokens, in_features] -> [tokens, out_features]``"""

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)

    def map_weights(self, weights: WeightMap, *parts: str) -> None:
        """Expect ``PART.weight`` (and ``PART.bias``) for each part, in the order of ``out_parts``."""
        assert len(parts) == len(self.spec.out_parts)
        for index, (part, rows) in enumerate(zip(parts, self.spec.out_parts, strict=True)):
            weights.add(f"{part}.weight", (rows, self.spec.in_features), partial(self.load, index))
            if self.spec.bias:
                weights.add(f"{part}.bias", (rows,), partial(self.load_bias, index))

    def load(self, part: int, ref: WeightRef) -> None:
        self._method.load(self.weights, part, ref)

    def load_bias(self, part: int, ref: WeightRef) -> None:
        self._method.load_bias(self.weights, part, ref)

    def finish(self) -> None:
        """All parts are in."""
        self._method.finish(self.weights)

    def embed(self, ids: Tensor) -> Tensor:
        """Rows ``ids [tokens]`` of the weight: the embedding that is tied to this head."""
        return self._method.embed(self.weights, ids)

    @property
    def nbytes(self) -> int:
        """Bytes that one pass reads."""
        return self._method.nbytes(self.weights)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that it takes."""
        return self._method.resident_bytes(self.weights)


__all__ = ["Linear"]
