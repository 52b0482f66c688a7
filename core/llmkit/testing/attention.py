"""What every attention backend must do. In a plugin's tests::

    class TestMine(AttentionSuite):
        backend = "mine"

Random layouts (chunked prefill, decode, both in one step, blocks out of order, padding) go through the
backend and are compared with softmax attention in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from llmkit.contracts import AttentionBackend, AttentionSpec, BackendSpec, BatchLayout, LayerInputs
from llmkit.testing.attention_driver import ARRANGEMENTS, Driver, Schedule, int32
from llmkit.testing.components import create

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_size=16, head_size_v=16, scale=0.25)

FEATURES: Mapping[str, AttentionSpec] = {
    "grouped heads": SPEC,
    "a head each": replace(SPEC, num_kv_heads=6),
    "one KV head": replace(SPEC, num_heads=5, num_kv_heads=1),
    "head size 64": replace(SPEC, head_size=64, head_size_v=64, scale=0.125),
    "odd head size": replace(SPEC, head_size=20, head_size_v=20),
    "narrow values": replace(SPEC, head_size=48, head_size_v=24, scale=0.14),
    "a scale of its own": replace(SPEC, scale=0.1),
    "window of 1": replace(SPEC, window=1),
    "window of 7": replace(SPEC, window=7),
    "window of 33": replace(SPEC, window=33),
    "soft cap": replace(SPEC, soft_cap=1.5),
    "soft cap and window": replace(SPEC, soft_cap=1.5, window=20),
}

quick = settings(
    max_examples=5,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)

USUAL = Schedule(
    (75, 33, 2),
    (((0, 20), (2, 1)), ((2, 1), (0, 30)), ((1, 33), (0, 9)), *(((0, 1),) for _ in range(16))),
)
"""Chunks that begin and end within blocks, decode over a block's edge, both in one step."""


@st.composite
def schedules(draw: st.DrawFn, most_sequences: int = 4, longest: int = 75) -> Schedule:
    """Sequences and how their tokens are cut into steps."""
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=most_sequences))
    left = list(lengths)
    steps: list[list[tuple[int, int]]] = []
    while any(left):
        step = []
        for index, rest in enumerate(left):
            count = min(rest, draw(st.sampled_from((rest, 1, 1, 2, 9, 0))))
            if count:
                step.append((index, count))
                left[index] -= count
        if step:
            steps.append(step)
    return Schedule(tuple(lengths), tuple(tuple(draw(st.permutations(step))) for step in steps))


class AttentionSuite:
    """Subclass it and name the backend. Cases it ``refuses`` are skipped with its reason. Since 0.1."""

    backend: ClassVar[str] = ""
    plugin: ClassVar[str | None] = None
    """To enable, where the backend is not built in."""
    plugin_options: ClassVar[Mapping[str, str]] = {}
    device: ClassVar[str] = "cpu"
    block_sizes: ClassVar[tuple[int, ...]] = (16, 32)
    kv_cache_dtype: ClassVar[str] = "auto"
    tolerances: ClassVar[Mapping[str, float]] = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
    """Activations' dtype -> largest difference from float64, over values of about 1. The dtypes tested."""
    num_threads: ClassVar[int] = 2

    @pytest.mark.parametrize("feature", FEATURES)
    def test_equals_softmax_attention(self, feature: str) -> None:
        for block_size in self.block_sizes:
            self.check_random_schedules(self.spec(FEATURES[feature], block_size=block_size))

    def test_dtypes(self) -> None:
        for dtype in self.tolerances:
            layer = replace(SPEC, head_size=64, head_size_v=64, scale=0.125)
            self.check_random_schedules(self.spec(layer, dtype=dtype))

    def test_layers_with_other_windows_sizes_and_shared_caches(self) -> None:
        """Several groups over one pool, blocks of unequal size, a layer that reads another's."""
        layers = (
            SPEC,
            replace(SPEC, window=9),
            replace(SPEC, window=9, num_kv_heads=6),
            replace(SPEC, num_heads=4, shares=0),
            replace(SPEC, window=9, shares=1),
        )
        spec = self.spec(*layers)
        self.check_random_schedules(spec)

    def test_a_long_sequence_and_many_short_ones(self) -> None:
        """Enough work for every thread the backend has."""
        lengths = (300, *range(1, 40))
        steps = (
            tuple((index, max(1, length - 3)) for index, length in enumerate(lengths)),
            *(tuple((index, 1) for index, length in enumerate(lengths) if length > 3) for _ in range(3)),
        )
        self.check(self.spec(SPEC), Schedule(lengths, steps), seed=0)

    def test_rows_do_not_depend_on_the_batch(self) -> None:
        """Bit-equal alone or among others, prefilled whole, in chunks or token by token."""
        layers = (
            replace(SPEC, head_size=64, head_size_v=64),
            replace(SPEC, head_size=64, head_size_v=64, window=21),
        )
        spec = self.spec(*layers)
        if not self.make(spec).row_invariant:
            pytest.skip(f"{self.backend} does not claim row invariance")
        lengths = (70, 33, 1)
        at_once = Schedule(lengths, tuple(((index, length),) for index, length in enumerate(lengths)))
        expected = self.run(replace(spec, num_threads=1), at_once, seed=3)

        @quick
        @given(order=st.permutations(range(3)), cut=st.integers(1, 70), crowd=st.integers(0, 12))
        def check(order: list[int], cut: int, crowd: int) -> None:
            steps = []
            left = list(lengths) + [40] * crowd
            while any(left):
                step = [(index, min(cut, left[index])) for index in (*order, *range(3, 3 + crowd))]
                step = [(index, count) for index, count in step if count]
                for index, count in step:
                    left[index] -= count
                steps.append(tuple(step))
            schedule = Schedule((*lengths, *[40] * crowd), tuple(steps))
            results = self.run(spec, schedule, seed=3)
            for index in range(3):
                for layer in range(len(layers)):
                    assert torch.equal(results[index][layer], expected[index][layer])

        check()

    def test_a_copied_block_means_the_same(self) -> None:
        """Blocks are copied as bytes into other ids half-way; the originals are overwritten."""
        spec = self.spec(SPEC, replace(SPEC, window=30, num_kv_heads=6))
        backend = self.make(spec)
        driver = Driver(backend, spec, (50, 40), seed=5)
        driver.step(((0, 29), (1, 17)))
        driver.move_blocks()
        driver.step(((1, 23), (0, 1)))
        driver.move_blocks()
        driver.step(((0, 20),))
        self.compare(driver)

    def test_blocks_of_other_sequences_are_not_written(self) -> None:
        """The driver compares every byte of every block outside the slot mapping, each step."""
        spec = self.spec(SPEC)
        driver = Driver(self.make(spec), spec, (40, 20, 3), seed=6)
        driver.step(((0, 40),), padded_rows=1, padded_tokens=3)
        driver.step(((1, 1),), padded_rows=2)
        driver.step(((2, 3), (1, 19)), padded_tokens=5)
        self.compare(driver)

    @pytest.mark.parametrize("heads", ["grouped heads", "one KV head"])
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_any_strides(self, arrangement: str, heads: str) -> None:
        """q, k, v and out may lie in memory as they like, many tokens or one."""
        spec = self.spec(FEATURES[heads])
        driver = Driver(self.make(spec), spec, (30, 5), seed=7, arrangement=arrangement)
        driver.step(((0, 29), (1, 4)))
        driver.step(((1, 1),))
        driver.step(((0, 1),))
        self.compare(driver)

    def test_bidirectional_layers_attend_within_the_row_and_store_nothing(self) -> None:
        layer = replace(SPEC, mask="bidirectional")
        spec = self.spec(layer)
        backend = self.make(spec)
        kv = backend.kv_cache_spec(0)
        assert (kv.kind, kv.block_bytes) == ("none", 0)
        driver = Driver(backend, spec, (12, 1, 30), seed=8)
        driver.step(((0, 12), (1, 1), (2, 30)))
        self.compare(driver)

    def test_says_what_it_stores(self) -> None:
        spec = self.spec(SPEC, replace(SPEC, window=9), replace(SPEC, shares=0))
        backend = self.make(spec)
        full, sliding, shared = (backend.kv_cache_spec(layer) for layer in range(3))
        assert (full.kind, full.window, full.block_size) == ("full", None, spec.block_size)
        assert (sliding.kind, sliding.window) == ("sliding", 9)
        assert (shared.kind, shared.shares, shared.block_bytes) == ("shared", 0, 0)
        assert full.block_bytes > 0
        assert full.encoding == sliding.encoding

    def test_an_empty_step(self) -> None:
        spec = self.spec(SPEC)
        backend = self.make(spec)
        Driver(backend, spec, (1,), seed=9)
        plan = backend.make_plan(8, 4, 4)
        nothing = int32(0)
        layout = BatchLayout(0, 0, int32(1), nothing, (int32(0, 4),), (nothing,), 0, 0, 0)
        plan.update(layout)
        q = torch.empty(0, SPEC.num_heads, SPEC.head_size, device=self.device)
        k = torch.empty(0, SPEC.num_kv_heads, SPEC.head_size, device=self.device)
        backend.attend(LayerInputs(0, q, k, k), plan, torch.empty_like(q))

    # ---- for subclasses that add cases ----

    def spec(
        self, *layers: AttentionSpec, dtype: str | None = None, block_size: int | None = None
    ) -> BackendSpec:
        return BackendSpec(
            layers=layers,
            dtype=dtype or next(iter(self.tolerances)),
            kv_cache_dtype=self.kv_cache_dtype,
            block_size=block_size or self.block_sizes[0],
            device=self.device,
            deterministic=False,
            num_threads=self.num_threads,
        )

    def make(self, spec: BackendSpec) -> AttentionBackend:
        """The backend for this; skips the test with its reason where it refuses."""
        backend: AttentionBackend = create(
            "attention", self.backend, spec, plugin=self.plugin, options=self.plugin_options
        )
        return backend

    def check_random_schedules(self, spec: BackendSpec) -> None:
        self.make(spec)  # skips before hypothesis begins

        @quick
        @example(schedule=USUAL, seed=0)
        @given(schedule=schedules(), seed=st.integers(0, 999))
        def check(schedule: Schedule, seed: int) -> None:
            self.check(spec, schedule, seed)

        check()

    def check(self, spec: BackendSpec, schedule: Schedule, seed: int) -> None:
        self.compare(self.drive(spec, schedule, seed))

    def run(self, spec: BackendSpec, schedule: Schedule, seed: int) -> list[list[Tensor]]:
        """Results by sequence and layer, [length, heads, head_size_v]."""
        return self.drive(spec, schedule, seed).results

    def drive(self, spec: BackendSpec, schedule: Schedule, seed: int) -> Driver:
        """A fresh backend's run of the whole schedule, padded now and then."""
        driver = Driver(self.make(spec), spec, schedule.lengths, seed)
        for number, step in enumerate(schedule.steps):
            driver.step(step, padded_rows=number % 2, padded_tokens=number % 3)
        return driver

    def compare(self, driver: Driver) -> None:
        """Everything the driver's sequences computed so far, with float64."""
        tolerance = self.tolerances[driver.spec.dtype]
        for layer, spec in enumerate(driver.spec.layers):
            source = layer if spec.shares is None else spec.shares
            for sequence in driver.sequences:
                done = sequence.computed
                expected = softmax_attention(
                    sequence.q[layer][:done], sequence.k[source][:done], sequence.v[source][:done], spec
                )
                actual = sequence.results[layer][:done].double()
                difference = (actual - expected).abs().max().item() if done else 0.0
                assert difference <= tolerance, (
                    f"layer {layer} differs by {difference:.2e} over {done} tokens: {spec}"
                )


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """The definition, in float64, of one sequence: [tokens, heads, head_size_v]."""
    group = spec.num_heads // spec.num_kv_heads
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    positions = torch.arange(q.shape[1], device=q.device)
    distance = positions[:, None] - positions[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if spec.mask == "causal":
        seen &= distance >= 0
    if spec.window is not None:
        seen &= distance < spec.window
    if spec.soft_cap is None:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=spec.scale
        ).transpose(0, 1)
    scores = spec.soft_cap * torch.tanh(q @ k.transpose(1, 2) * spec.scale / spec.soft_cap)
    return (scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v).transpose(0, 1)


__all__ = ["FEATURES", "AttentionSuite", "Driver", "Schedule", "schedules", "softmax_attention"]
