"""Linear methods that pack weights once: ``fp16-weights`` (FBGEMM) and ``packed`` (oneDNN).

Both add up a row's products in an order that does not depend on the other rows; where that is a property of
the machine and not of the code, it is measured (``_first_unequal``) before it is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from llmkit import CheckpointError, EngineError, StartupError
from llmkit.contracts import LinearEnv, LinearSpec, WeightRef

PROBED_ROWS = (2, 3, 5, 8, 13, 16, 31, 64)
"""Numbers of rows that must give the same bits as a row of the largest."""
_PLAIN = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(slots=True)
class PackedWeights:
    """One layer's: the parts side by side while they load, then what the library made of them."""

    spec: LinearSpec
    dense: Tensor | None
    """[out_features, in_features] until packed."""
    bias: Tensor | None = None
    """float32 [out_features]"""
    packed: Any = None
    rows: Tensor | None = None
    """[out_features, in_features]: the weight again, readable by rows, of a tied layer."""

    def part(self, tensor: Tensor, part: int) -> Tensor:
        return tensor.narrow(0, sum(self.spec.out_parts[:part]), self.spec.out_parts[part])


class _PackedMethod:
    """What both have in common: loading, and rows of a tied embedding."""

    row_invariant = True
    _dtype: torch.dtype
    """Of the weights as stored."""

    def create(self, spec: LinearSpec) -> PackedWeights:
        bias = torch.empty(spec.out_features) if spec.bias else None
        return PackedWeights(spec, torch.empty(spec.out_features, spec.in_features, dtype=self._dtype), bias)

    def load(self, weights: PackedWeights, part: int, ref: WeightRef) -> None:
        assert weights.dense is not None
        dense = ref.dense(self._dtype)
        weights.part(weights.dense, part).copy_(dense)
        if weights.spec.tied:
            weights.rows = self._readable(ref, dense)

    def load_bias(self, weights: PackedWeights, part: int, ref: WeightRef) -> None:
        assert weights.bias is not None
        weights.part(weights.bias, part).copy_(ref.dense(torch.float32))

    def embed(self, weights: PackedWeights, ids: Tensor) -> Tensor:
        """:raises EngineError: the layer is not tied, so that nothing readable was kept."""
        if weights.rows is None:
            raise EngineError(f"linear layer {weights.spec.name} was not made as a tied one: it has no rows")
        return F.embedding(ids, weights.rows).float()

    def nbytes(self, weights: PackedWeights) -> int:
        spec = weights.spec
        return spec.out_features * (spec.in_features * self._dtype.itemsize + 4 * spec.bias)

    def resident_bytes(self, weights: PackedWeights) -> int:
        return self.nbytes(weights) + (0 if weights.rows is None else weights.rows.nbytes)

    def _readable(self, ref: WeightRef, dense: Tensor) -> Tensor:
        """What ``embed`` reads: where it is no larger, the checkpoint's own values, a view of the mapped
        file. Libraries cannot read rows of what they packed."""
        own = _PLAIN.get(ref.encoding, self._dtype)
        return ref.dense(own) if own != self._dtype and own.itemsize <= self._dtype.itemsize else dense


class Fp16Weights(_PackedMethod):
    """Weights rounded to fp16 and packed by FBGEMM; activations and sums are fp32.

    FBGEMM runs over the inner dimension in order, a row at a time, whatever the number of rows.
    """

    _dtype = torch.float16

    def __init__(self, env: LinearEnv) -> None:
        self._prepack = torch.ops.quantized.linear_prepack_fp16.default
        self._linear = torch.ops.quantized.linear_dynamic_fp16.default

    def load(self, weights: PackedWeights, part: int, ref: WeightRef) -> None:
        """:raises CheckpointError: a weight is too large for fp16."""
        super().load(weights, part, ref)
        assert weights.dense is not None
        if not weights.part(weights.dense, part).isfinite().all():
            raise CheckpointError(
                f"{ref.name} has values beyond 65504 or not finite; linear method fp16-weights stores "
                "fp16. Choose --quantization packed."
            )

    def finish(self, weights: PackedWeights) -> None:
        assert weights.dense is not None
        weights.packed = self._prepack(weights.dense.float(), weights.bias)
        weights.dense = weights.bias = None

    def apply(self, weights: PackedWeights, x: Tensor) -> Tensor:
        y: Tensor = self._linear(x, weights.packed)
        return y


class OneDnnPacked(_PackedMethod):
    """fp32 weights reordered by oneDNN.

    oneDNN has another kernel for a single row, so that one is computed twice over. Under
    ``--deterministic`` every shape is probed at load.
    """

    _dtype = torch.float32

    def __init__(self, env: LinearEnv) -> None:
        self._linear = torch.ops.mkldnn._linear_pointwise.default
        self.row_invariant = env.deterministic
        self._probed: set[tuple[int, int]] = set()

    def finish(self, weights: PackedWeights) -> None:
        """:raises StartupError: under ``--deterministic``, a row's result depends on the number of rows."""
        weights.packed = torch.ops.mkldnn._reorder_linear_weight(weights.dense, None)
        weights.dense = None
        spec = weights.spec
        shape = (spec.out_features, spec.in_features)
        if not self.row_invariant or shape in self._probed:
            return
        unequal = _first_unequal(lambda x: self.apply(weights, x), spec.in_features)
        if unequal is not None:
            raise StartupError(
                f"linear method packed: {spec.name} ({shape[0]} x {shape[1]}): here a row's result "
                f"is another among {unequal} rows, so --deterministic cannot hold; choose "
                "--quantization torch"
            )
        self._probed.add(shape)

    def apply(self, weights: PackedWeights, x: Tensor) -> Tensor:
        alone = x.shape[0] == 1
        rows = x.expand(2, -1) if alone else x
        y: Tensor = self._linear(rows, weights.packed, weights.bias, "none", [], "")
        return y[:1] if alone else y


def missing_fp16() -> str | None:
    """Why ``fp16-weights`` cannot run on this machine, or None."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return "this torch has no FBGEMM"
    weight = torch.linspace(-1, 1, 48 * 1100).view(48, 1100)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    unequal = _first_unequal(lambda x: torch.ops.quantized.linear_dynamic_fp16(x, packed), 1100)
    return None if unequal is None else f"here FBGEMM's result for a row is another among {unequal} rows"


def missing_packed() -> str | None:
    """Why ``packed`` cannot run on this machine, or None."""
    if not torch._C._has_mkldnn:
        return "this torch has no oneDNN"
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this torch has no oneDNN linear with packed weights"
    return None


def _first_unequal(multiply: Callable[[Tensor], Tensor], in_features: int) -> int | None:
    """The first number of rows with which some row's bits differ from those it has among the most."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(PROBED_ROWS[-1], in_features, generator=generator)
    expected = multiply(rows)
    for count in (1, *PROBED_ROWS):
        picked = torch.randperm(len(rows), generator=generator)[:count]
        if not torch.equal(multiply(rows[picked]), expected[picked]):
            return count
    return None
