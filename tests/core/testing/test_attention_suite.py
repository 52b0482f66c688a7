"""The attention suite fails for backends that are wrong, also at the tolerance that eight bits need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from torch import Tensor

from llmkit.contracts import AttentionBackend, AttentionPlan, AttentionSpec, BackendSpec, LayerInputs
from llmkit.testing import attention as suite_module
from llmkit.testing.attention import AttentionSuite
from llmkit_torch_reference import attention as reference
from llmkit_torch_reference.attention import ReferenceBackend, ReferencePlan

EIGHT_BITS = 0.12
"""What ``examples/int8-kv`` allows itself."""


@pytest.fixture(autouse=True)
def no_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is what we want, its smallest case is not; the same cases every time."""
    same = settings(suite_module.quick, phases=[Phase.explicit, Phase.generate], derandomize=True)
    monkeypatch.setattr(suite_module, "quick", same)


# ---- wrong backends: each changes one thing of the reference ----


class OtherLayers(ReferenceBackend):
    """Attends by specs that are not the model's, and stores by those that are."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self._true_spec = spec
        self._spec = replace(spec, layers=tuple(self.change(layer) for layer in spec.layers))

    def kv_cache_spec(self, layer: int) -> Any:
        given = self._spec
        self._spec = self._true_spec
        try:
            return super().kv_cache_spec(layer)
        finally:
            self._spec = given

    @staticmethod
    def change(layer: AttentionSpec) -> AttentionSpec:
        raise NotImplementedError


class WindowOneMore(OtherLayers):
    @staticmethod
    def change(layer: AttentionSpec) -> AttentionSpec:
        return replace(layer, window=layer.window and layer.window + 1)


class WindowOneLess(OtherLayers):
    @staticmethod
    def change(layer: AttentionSpec) -> AttentionSpec:
        return replace(layer, window=layer.window and max(1, layer.window - 1))


class NoWindow(OtherLayers):
    @staticmethod
    def change(layer: AttentionSpec) -> AttentionSpec:
        return replace(layer, window=None)


class NoSoftCap(OtherLayers):
    @staticmethod
    def change(layer: AttentionSpec) -> AttentionSpec:
        return replace(layer, soft_cap=None)


class UsualScale(OtherLayers):
    """Ignores the model's own."""

    @staticmethod
    def change(layer: AttentionSpec) -> AttentionSpec:
        return replace(layer, scale=layer.head_size**-0.5)


class KOfTheNeighbour(ReferenceBackend):
    """Takes K from the block beside the right one."""

    def _read(self, layer: int, plan: ReferencePlan, row: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        right = self._keys[layer]
        self._keys[layer] = right.roll(1, dims=0).nan_to_num()
        try:
            keys, _ = super()._read(layer, plan, row, start, end)
        finally:
            self._keys[layer] = right
        return keys, super()._read(layer, plan, row, start, end)[1]


class StaleBlock(ReferenceBackend):
    """Remembers the block that a row's first tokens were in when it first saw them."""

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> ReferencePlan:
        class Plan(ReferencePlan):
            def update(self, layout: Any) -> None:
                known = self.block_tables
                super().update(layout)
                for old, new in zip(known, self.block_tables, strict=False):
                    rows = min(len(old), len(new))
                    same = (old[:rows, :1] > 0) & (new[:rows, :1] > 0)
                    new[:rows, :1] = torch.where(same, old[:rows, :1], new[:rows, :1])

        return Plan(self._device)


class BesideThePool(ReferenceBackend):
    """Keeps K in memory of its own by block id, so that a copied block is not whole."""

    def bind(self, memory: Any) -> None:
        super().bind(memory)
        self._keys = [torch.zeros_like(keys) for keys in self._keys]


class WritesPadding(ReferenceBackend):
    """Takes slot -1 for the last one."""

    def _store(self, inputs: LayerInputs, plan: ReferencePlan) -> None:
        super()._store(inputs, plan)
        assert plan.layout is not None
        assert inputs.k is not None
        if (plan.layout.slot_mapping[self._groups[inputs.layer]] < 0).any():
            self._keys[inputs.layer][-1, -1] = 0


class RoundsScores(ReferenceBackend):
    """As bfloat16."""

    attention = staticmethod(
        lambda q, k, v, spec, seen: (
            ((q @ k.transpose(1, 2)) * spec.scale)
            .bfloat16()
            .float()
            .masked_fill(~seen, -torch.inf)
            .softmax(-1)
            @ v
        )
    )


class NotCausal(ReferenceBackend):
    """Sees the rest of its own chunk."""

    attention = staticmethod(
        lambda q, k, v, spec, seen: (
            ((q @ k.transpose(1, 2)) * spec.scale)
            .masked_fill(~seen.any(0, keepdim=True), -torch.inf)
            .softmax(-1)
            @ v
        )
    )


class ChunkFromTheStart(ReferenceBackend):
    """Takes a chunk's first query for the sequence's first."""

    attention = staticmethod(
        lambda q, k, v, spec, seen: (
            ((q @ k.transpose(1, 2)) * spec.scale)
            .masked_fill(~torch.ones_like(seen).tril(), -torch.inf)
            .softmax(-1)
            @ v
        )
    )


class HeadsInterleaved(ReferenceBackend):
    """Query head ``h`` reads KV head ``h % kv_heads``."""

    attention = staticmethod(
        lambda q, k, v, spec, seen: (
            ((q @ _interleaved(k, spec).transpose(1, 2)) * spec.scale)
            .masked_fill(~seen, -torch.inf)
            .softmax(-1)
            @ _interleaved(v, spec)
        )
    )


class CapAfterMask(ReferenceBackend):
    """Caps the mask's minus infinity too: what is unseen gets a weight."""

    attention = staticmethod(
        lambda q, k, v, spec, seen: (
            (
                torch.tanh(
                    (q @ k.transpose(1, 2) * spec.scale).masked_fill(~seen, -torch.inf) / spec.soft_cap
                )
                * spec.soft_cap
            ).softmax(-1)
            @ v
        )
    )


class IgnoresStrides(ReferenceBackend):
    """Reads q as if it were contiguous."""

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        q = inputs.q
        size = q.shape[1] * q.shape[2]
        wrong = q.as_strided(q.shape, (size, q.shape[2], 1))
        super().attend(replace(inputs, q=wrong), plan, out)


class DependsOnTheBatch(ReferenceBackend):
    """Claims row invariance; another number of rows, another last bit."""

    row_invariant = True

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        super().attend(inputs, plan, out)
        assert isinstance(plan, ReferencePlan)
        assert plan.layout is not None
        if plan.layout.num_rows > 3:
            out.mul_(1 + 2**-23)


def _interleaved(heads: Tensor, spec: AttentionSpec) -> Tensor:
    """[num_heads, keys, size] from what was repeated for each group."""
    group = spec.num_heads // spec.num_kv_heads
    return heads[::group].repeat(group, 1, 1)


def planted_attention(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``attention(q, k, v, spec, seen)`` over [heads, tokens, size] in the place of the reference's."""

    def wrong(q: Tensor, keys: Tensor, values: Tensor, start: int, end: int, spec: AttentionSpec) -> Tensor:
        group = spec.num_heads // spec.num_kv_heads
        k, v = (x.float().transpose(0, 1).repeat_interleave(group, 0) for x in (keys, values))
        distance = torch.arange(end - len(q), end)[:, None] - torch.arange(start, end)
        seen = (distance >= 0) & (distance < (spec.window or end + 1))
        return attention(q.float().transpose(0, 1), k, v, spec, seen).transpose(0, 1).to(q.dtype)

    return wrong


# ---- which test must notice ----


@dataclass(frozen=True)
class Plant:
    backend: type[ReferenceBackend]
    test: str
    arguments: tuple[str, ...] = ()
    in_eight_bits: bool = True
    """Large enough to show at that tolerance."""
    message: str | None = "differs by"


EQUALS = "test_equals_softmax_attention"
PLANTS = (
    Plant(WindowOneMore, EQUALS, ("window of 1",)),
    Plant(WindowOneMore, EQUALS, ("window of 7",)),
    Plant(WindowOneMore, EQUALS, ("window of 33",)),
    Plant(WindowOneLess, EQUALS, ("window of 7",)),
    Plant(WindowOneLess, EQUALS, ("window of 33",)),
    Plant(NoWindow, EQUALS, ("window of 33",)),
    Plant(WindowOneMore, "test_layers_with_other_windows_sizes_and_shared_caches"),
    Plant(NoSoftCap, EQUALS, ("soft cap",)),
    Plant(NoSoftCap, EQUALS, ("soft cap and window",)),
    Plant(CapAfterMask, EQUALS, ("soft cap",)),
    Plant(UsualScale, EQUALS, ("a scale of its own",)),
    Plant(KOfTheNeighbour, EQUALS, ("grouped heads",)),
    Plant(HeadsInterleaved, EQUALS, ("grouped heads",)),
    Plant(NotCausal, EQUALS, ("a head each",)),
    Plant(ChunkFromTheStart, EQUALS, ("a head each",)),
    Plant(RoundsScores, EQUALS, ("head size 64",), in_eight_bits=False),
    Plant(StaleBlock, "test_a_copied_block_means_the_same"),
    Plant(BesideThePool, "test_a_copied_block_means_the_same"),
    Plant(
        WritesPadding,
        "test_blocks_of_other_sequences_are_not_written",
        message="slot mapping was written|differs by",
    ),
    Plant(IgnoresStrides, "test_any_strides", ("columns of one product", "grouped heads")),
    Plant(IgnoresStrides, "test_any_strides", ("heads outermost", "grouped heads")),
    Plant(DependsOnTheBatch, "test_rows_do_not_depend_on_the_batch", message=None),
)


def named(plant: Plant) -> str:
    return "-".join((plant.backend.__name__, *(plant.arguments or (plant.test,))))


@pytest.mark.parametrize("tolerance", [2e-5, EIGHT_BITS], ids=["float32", "eight bits"])
@pytest.mark.parametrize("plant", PLANTS, ids=named)
def test_a_wrong_backend_fails(plant: Plant, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if tolerance == EIGHT_BITS and not plant.in_eight_bits:
        pytest.skip("eight bits round as much")
    if (attention := getattr(plant.backend, "attention", None)) is not None:
        monkeypatch.setattr(reference, "_attention", planted_attention(attention))
    check_fails(plant, {"float32": tolerance})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", [KOfTheNeighbour, UsualScale, WindowOneMore])
def test_a_wrong_backend_fails_in_halves(backend: type[ReferenceBackend], dtype: str) -> None:
    features = {
        KOfTheNeighbour: "grouped heads",
        UsualScale: "a scale of its own",
        WindowOneMore: "window of 33",
    }
    check_fails(Plant(backend, EQUALS, (features[backend],)), {dtype: AttentionSuite.tolerances[dtype]})


def test_the_plants_are_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference itself passes each of those tests, also with its attention replaced by a right one."""
    right = planted_attention(
        lambda q, k, v, spec, seen: (
            _capped((q @ k.transpose(1, 2)) * spec.scale, spec).masked_fill(~seen, -torch.inf).softmax(-1) @ v
        )
    )
    for replacement in (None, right):
        if replacement is not None:
            monkeypatch.setattr(reference, "_attention", replacement)
        for test, arguments in sorted({(plant.test, plant.arguments) for plant in PLANTS}):
            if test != "test_rows_do_not_depend_on_the_batch":
                getattr(suite(ReferenceBackend, {"float32": 2e-5}), test)(*arguments)


def _capped(scores: Tensor, spec: AttentionSpec) -> Tensor:
    return scores if spec.soft_cap is None else torch.tanh(scores / spec.soft_cap) * spec.soft_cap


def check_fails(plant: Plant, tolerances: dict[str, float]) -> None:
    with pytest.raises(AssertionError, match=plant.message):
        getattr(suite(plant.backend, tolerances), plant.test)(*plant.arguments)


def suite(backend: type[ReferenceBackend], allowed: dict[str, float]) -> AttentionSuite:
    class Planted(AttentionSuite):
        tolerances = allowed

        def make(self, spec: BackendSpec) -> AttentionBackend:
            return backend(spec)

    return Planted()
