"""The linear suite fails for methods that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmkit.contracts import LinearEnv, LinearMethod, WeightRef
from llmkit.testing.linear import LinearSuite
from llmkit_torch_reference.linear import DenseWeights, RowTiledLinear, TorchLinear


class PartsAsTheyCome(TorchLinear):
    """Puts parts one behind the other in the order in which they are loaded."""

    def create(self, spec: Any) -> Any:
        self._arrived = 0
        return super().create(spec)

    def load(self, weights: DenseWeights, part: int, ref: WeightRef) -> None:
        if len(weights.spec.out_parts) == 1:
            return super().load(weights, part, ref)
        if weights.weight is None:
            weights.weight = torch.empty(weights.spec.out_features, weights.spec.in_features)
        dense = ref.dense(torch.float32)
        weights.weight[self._arrived : self._arrived + len(dense)] = dense
        self._arrived += len(dense)
        return None


class PartsReversed(TorchLinear):
    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        parts = torch.split(super().apply(weights, x), list(weights.spec.out_parts), dim=1)
        return torch.cat(parts[::-1], dim=1)


class NoBias(TorchLinear):
    def load_bias(self, weights: DenseWeights, part: int, ref: WeightRef) -> None:
        pass


class BiasOfTheFirstPart(TorchLinear):
    def load_bias(self, weights: DenseWeights, part: int, ref: WeightRef) -> None:
        if weights.bias is None:
            weights.bias = torch.zeros(weights.spec.out_features, dtype=self._dtype)
        if part == 0:
            super().load_bias(weights, part, ref)


class RoundsToBfloat16(TorchLinear):
    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        return super().apply(weights, x.bfloat16().to(x.dtype))


class AnswersInFloat32(TorchLinear):
    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        return super().apply(weights, x).float()


class IgnoresStrides(TorchLinear):
    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        return super().apply(weights, x.as_strided(x.shape, (x.shape[1], 1)))


class EmbedsTheRowBefore(TorchLinear):
    def embed(self, weights: DenseWeights, ids: Tensor) -> Tensor:
        return super().embed(weights, (ids - 1).clamp(min=0))


class EmbedsInFloat32(TorchLinear):
    def embed(self, weights: DenseWeights, ids: Tensor) -> Tensor:
        return super().embed(weights, ids).float()


class ForgetsACopy(TorchLinear):
    """Makes readable rows at the first use and counts them only then."""

    def create(self, spec: Any) -> Any:
        self._copies = 0
        return super().create(spec)

    def embed(self, weights: DenseWeights, ids: Tensor) -> Tensor:
        assert weights.weight is not None
        self._copies = weights.weight.nbytes
        return super().embed(weights, ids)

    def resident_bytes(self, weights: DenseWeights) -> int:
        return super().resident_bytes(weights) + self._copies


class HoldsNothing(TorchLinear):
    def resident_bytes(self, weights: DenseWeights) -> int:
        return 0


class ReadsAlwaysTheSame(TorchLinear):
    def nbytes(self, weights: DenseWeights) -> int:
        return 64 * 64 * 4


class DependsOnTheBatch(RowTiledLinear):
    """Another number of rows, another last bit."""

    def finish(self, weights: DenseWeights) -> None:
        pass  # it would find out

    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        return super().apply(weights, x) * (1 + 2**-23 * (len(x) % 2))


class DependsOnThePlace(RowTiledLinear):
    def finish(self, weights: DenseWeights) -> None:
        pass

    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        y = super().apply(weights, x)
        y[40:] *= 1 + 2**-23
        return y


class DependsOnTheNeighbours(RowTiledLinear):
    def finish(self, weights: DenseWeights) -> None:
        pass

    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        y = super().apply(weights, x)
        return y * (1 + 2**-23) if len(x) and x.abs().max() > 1e3 else y


class DependsOnThreads(RowTiledLinear):
    def apply(self, weights: DenseWeights, x: Tensor) -> Tensor:
        return super().apply(weights, x) * (1 + 2**-23 * (torch.get_num_threads() % 2))


FUSED = ("test_multiplies_fused_parts", (32, 8, 8))
ROWS = ("test_rows_do_not_depend_on_the_batch", 1)


@pytest.mark.parametrize(
    ("method", "test", "arguments"),
    [
        (PartsAsTheyCome, "test_a_part_may_be_loaded_in_any_order", ()),
        (PartsReversed, *FUSED),
        (NoBias, *FUSED),
        (BiasOfTheFirstPart, *FUSED),
        (RoundsToBfloat16, *FUSED),
        (AnswersInFloat32, *FUSED),
        (IgnoresStrides, "test_strided_rows", ()),
        (EmbedsTheRowBefore, "test_embeds_rows_of_the_weight", ()),
        (EmbedsInFloat32, "test_embeds_rows_of_the_weight", ()),
        (ForgetsACopy, "test_says_how_much_it_reads_and_holds", ()),
        (HoldsNothing, "test_says_how_much_it_reads_and_holds", ()),
        (ReadsAlwaysTheSame, "test_says_how_much_it_reads_and_holds", ()),
        (DependsOnTheBatch, *ROWS),
        (DependsOnThePlace, *ROWS),
        (DependsOnTheNeighbours, *ROWS),
        (DependsOnThreads, "test_the_number_of_threads_does_not_show", ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_method_fails(method: type[TorchLinear], test: str, arguments: Any) -> None:
    given = {"parts": arguments, "bias": True} if test == FUSED[0] else {}
    given |= {"threads": 1} if test == ROWS[0] else {}
    getattr(suite(RowTiledLinear if issubclass(method, RowTiledLinear) else TorchLinear), test)(**given)
    with pytest.raises(AssertionError):
        getattr(suite(method), test)(**given)


def suite(method: type[TorchLinear]) -> LinearSuite:
    class Planted(LinearSuite):
        most_rows = 140
        shapes = ((100, 37),)

        def make(self, env: LinearEnv) -> LinearMethod:
            return method(env)

    return Planted()
