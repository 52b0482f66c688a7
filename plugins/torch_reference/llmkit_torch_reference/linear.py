"""Linear method ``torch``: dense weights in the activations' dtype, multiplied by ``F.linear``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from llmkit import StartupError
from llmkit.contracts import LinearEnv, LinearSpec, WeightRef

TILE_ROWS = 32
"""Rows of every product under ``--deterministic``: one shape, so one kernel and one order of sums."""


@dataclass(slots=True)
class DenseWeights:
    """One layer's; the weight is made at the first part, or is that part where there is but one."""

    spec: LinearSpec
    weight: Tensor | None = None
    """[out_features, in_features]"""
    bias: Tensor | None = None
    """[out_features]"""


class TorchLinear:
    """``F.linear``, whose kernels and so whose rounding depend on the number of rows."""

    row_invariant = False

    def __init__(self, env: LinearEnv) -> None:
        self._dtype: torch.dtype = getattr(torch, env.dtype)
        self._device = torch.device(env.device)

    def create(self, spec: LinearSpec) -> DenseWeights:
        return DenseWeights(spec)

    def load(self, weights: DenseWeights, part: int, ref: WeightRef) -> None:
        dense = ref.dense(self._dtype)
        spec = weights.spec
        if len(spec.out_parts) == 1:
            weights.weight = dense.to(self._device)
            return
        if weights.weight is None:
            shape = (spec.out_features, spec.in_features)
            weights.weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        _part(weights.weight, spec, part).copy_(dense)

    def load_bias(self, weights: DenseWeights, part: int, ref: WeightRef) -> None:
        if weights.bias is None:
            weights.bias = torch.empty(weights.spec.out_features, dtype=self._dtype, device=self._device)
        _part(weights.bias, weights.spec, part).copy_(ref.dense(self._dtype))

    def finish(self, weights: DenseWeights) -> None:
        """Nothing to pack."""

    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        assert weights.weight is not None
        return F.linear(x, weights.weight, weights.bias)

    def embed(self, weights: DenseWeights, ids: Tensor) -> Tensor:
        assert weights.weight is not None
        return F.embedding(ids, weights.weight)

    def nbytes(self, weights: DenseWeights) -> int:
        return sum(tensor.nbytes for tensor in (weights.weight, weights.bias) if tensor is not None)

    def resident_bytes(self, weights: DenseWeights) -> int:
        return self.nbytes(weights)


class RowTiledLinear(TorchLinear):
    """``F.linear`` over tiles of ``TILE_ROWS`` rows, the last one padded with zeros.

    With one shape for every product a row can only depend on its place in the tile and on its
    neighbours; ``finish`` measures that it does not, for this shape on this machine, or refuses.
    """

    row_invariant = True

    def __init__(self, env: LinearEnv) -> None:
        super().__init__(env)
        self._proven: set[tuple[int, int]] = set()

    def finish(self, weights: DenseWeights) -> None:
        """:raises StartupError: a row's result depends on its place here."""
        spec = weights.spec
        shape = (spec.out_features, spec.in_features)
        if shape in self._proven:
            return
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(TILE_ROWS, spec.in_features, generator=generator)
        rows = rows.to(self._device, self._dtype)
        expected = self.apply(weights, rows)
        order = torch.randperm(TILE_ROWS, generator=generator).to(self._device)
        alone = torch.cat([self.apply(weights, row[None]) for row in rows])
        if not (
            torch.equal(self.apply(weights, rows[order]), expected[order]) and torch.equal(alone, expected)
        ):
            raise StartupError(
                f"linear method torch: {spec.name} ({shape[0]} x {shape[1]}): a row's result depends on its "
                "place in the batch on this machine, so --deterministic cannot hold; choose another with "
                "--quantization"
            )
        self._proven.add(shape)

    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        assert weights.weight is not None
        tokens = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -tokens % TILE_ROWS))
        out = x.new_empty(padded.shape[0], weights.spec.out_features)
        for start in range(0, padded.shape[0], TILE_ROWS):
            tile = slice(start, start + TILE_ROWS)
            out[tile] = F.linear(padded[tile], weights.weight, weights.bias)
        return out[:tokens]


def _part(tensor: Tensor, spec: LinearSpec, part: int) -> Tensor:
    return tensor.narrow(0, sum(spec.out_parts[:part]), spec.out_parts[part])
