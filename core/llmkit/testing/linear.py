"""What every linear method must do. In a plugin's tests::

class TestMine(LinearSuite):
    method = "mine"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from llmkit.contracts import LinearEnv, LinearMethod, LinearSpec
from llmkit.nn import TensorRef
from llmkit.testing.components import create

quick = settings(
    max_examples=15,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


class LinearSuite:
    """Subclass it and name the method. What it ``refuses`` is skipped with its reason. Since 0.1."""

    method: ClassVar[str] = ""
    plugin: ClassVar[str | None] = None
    """To enable, where the method is not built in."""
    plugin_options: ClassVar[Mapping[str, str]] = {}
    device: ClassVar[str] = "cpu"
    tolerances: ClassVar[Mapping[str, float]] = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
    """Activations' dtype -> largest error of the product, relative to its typical size. Those tested."""
    embedding_tolerance: ClassVar[float] = 0.0
    """Largest relative difference of a row that ``embed`` gives from the checkpoint's."""
    most_rows: ClassVar[int] = 600
    """Row invariance is tested up to so many rows."""
    shapes: ClassVar[Sequence[tuple[int, int]]] = ((576, 960), (1536, 576), (100, 37), (7, 3))
    """(in_features, out_features) of the row-invariance test."""

    @pytest.mark.parametrize("parts", [(24,), (32, 8, 8), (1, 17)], ids=str)
    @pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
    def test_multiplies_fused_parts(self, parts: tuple[int, ...], bias: bool) -> None:
        for dtype, tolerance in self.tolerances.items():
            env = self.env(dtype)
            method = self.make(env)
            weights, dense, offset = self.fill(method, env, 40, parts, bias=bias)
            for rows in (1, 2, 5, 33):
                x = random(rows, 40, seed=rows).to(getattr(torch, dtype)).to(self.device)
                y = method.apply(weights, x)
                assert y.shape == (rows, sum(parts))
                assert y.dtype == x.dtype
                expected = x.double() @ dense.double().T + offset.double()
                error = (y.double() - expected).abs().max().item() / expected.abs().mean().item()
                assert error <= 10 * tolerance, f"relative error {error:.1e} in {dtype} at {rows} rows"

    def test_a_part_may_be_loaded_in_any_order(self) -> None:
        env = self.env()
        method = self.make(env)
        x = random(3, 40, seed=1).to(self.device)
        in_order, _, _ = self.fill(method, env, 40, (8, 16, 8))
        reversed_, _, _ = self.fill(method, env, 40, (8, 16, 8), order=(2, 0, 1))
        assert torch.equal(method.apply(in_order, x), method.apply(reversed_, x))

    def test_strided_rows(self) -> None:
        """x may be columns of a wider tensor."""
        env = self.env()
        method = self.make(env)
        weights, _, _ = self.fill(method, env, 40, (24,))
        wide = random(6, 64, seed=2).to(self.device)
        assert torch.equal(
            method.apply(weights, wide[:, 8:48]), method.apply(weights, wide[:, 8:48].contiguous())
        )

    def test_embeds_rows_of_the_weight(self) -> None:
        for dtype in self.tolerances:
            env = self.env(dtype)
            method = self.make(env)
            weights, dense, _ = self.fill(method, env, 40, (24,), tied=True)
            ids = torch.tensor([3, 23, 0, 3], device=self.device)
            rows = method.embed(weights, ids)
            assert rows.dtype == getattr(torch, dtype)
            allowed = self.embedding_tolerance * dense.abs().max().item()
            assert (rows - dense[ids]).abs().max().item() <= allowed, f"in {dtype}"
            x = random(3, 40, seed=4).to(dense)
            alone, _, _ = self.fill(method, env, 40, (24,))
            assert torch.equal(method.apply(weights, x), method.apply(alone, x)), "tied or not"
            assert torch.equal(method.embed(weights, ids), rows)
            assert method.embed(weights, ids[:0]).shape == (0, 40)

    def test_says_how_much_it_reads_and_holds(self) -> None:
        """Both in the order of the weights' size; what it holds does not grow with use."""
        env = self.env()
        method = self.make(env)
        small, _, _ = self.fill(method, env, 64, (64,))
        large, _, _ = self.fill(method, env, 64, (64, 64))
        tied, _, _ = self.fill(method, env, 64, (64,), tied=True)
        assert 64 * 64 / 4 <= method.nbytes(small) <= method.resident_bytes(small) <= 8 * 64 * 64
        assert method.nbytes(small) < method.nbytes(large)
        assert method.resident_bytes(small) < method.resident_bytes(large)
        held = method.resident_bytes(tied)
        assert held >= method.resident_bytes(small)
        method.embed(tied, torch.tensor([1, 2], device=self.device))
        method.apply(tied, random(3, 64, seed=1).to(self.device))
        assert method.resident_bytes(tied) == held

    @pytest.mark.parametrize("threads", [1, 2])
    def test_rows_do_not_depend_on_the_batch(self, threads: int) -> None:
        """Bit-equal for every number of rows, every place among them and every neighbour."""
        env = replace(self.env(), deterministic=True, num_threads=threads)
        method = self.make(env)
        if not method.row_invariant:
            pytest.skip(f"{self.method} does not claim row invariance")
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            for in_features, out_features in self.shapes:
                weights, _, _ = self.fill(method, env, in_features, (out_features,))
                self.check_rows(method, weights, in_features)
        finally:
            torch.set_num_threads(before)

    def test_the_number_of_threads_does_not_show(self) -> None:
        env = replace(self.env(), deterministic=True, num_threads=2)
        method = self.make(env)
        if not method.row_invariant:
            pytest.skip(f"{self.method} does not claim row invariance")
        weights, _, _ = self.fill(method, env, 576, (960,))
        x = random(65, 576, seed=5).to(self.device)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            alone = method.apply(weights, x)
            torch.set_num_threads(2)
            assert torch.equal(method.apply(weights, x), alone)
        finally:
            torch.set_num_threads(before)

    # ---- for subclasses that add cases ----

    def env(self, dtype: str | None = None) -> LinearEnv:
        return LinearEnv(self.device, dtype or next(iter(self.tolerances)), "dense", deterministic=False)

    def make(self, env: LinearEnv) -> LinearMethod:
        """The method for this; skips the test with its reason where it refuses."""
        method: LinearMethod = create(
            "linear", self.method, env, plugin=self.plugin, options=self.plugin_options
        )
        return method

    def fill(
        self,
        method: LinearMethod,
        env: LinearEnv,
        in_features: int,
        parts: tuple[int, ...],
        *,
        bias: bool = False,
        tied: bool = False,
        order: Sequence[int] | None = None,
    ) -> tuple[Any, Tensor, Tensor]:
        """A finished layer, its dense weight and its bias (zeros without)."""
        spec = LinearSpec("layer", in_features, parts, bias, tied)
        weights = method.create(spec)
        dense = random(sum(parts), in_features, seed=11) * in_features**-0.5
        dense = dense.to(getattr(torch, env.dtype)).to(self.device)
        offset = (random(sum(parts), seed=12) if bias else torch.zeros(sum(parts))).to(dense)
        pieces, offsets = torch.split(dense, list(parts)), torch.split(offset, list(parts))
        for part in order or range(len(parts)):
            method.load(weights, part, TensorRef(f"part{part}.weight", pieces[part].cpu()))
            if bias:
                method.load_bias(weights, part, TensorRef(f"part{part}.bias", offsets[part].cpu()))
        method.finish(weights)
        return weights, dense, offset

    def check_rows(self, method: LinearMethod, weights: Any, in_features: int) -> None:
        rows = random(self.most_rows, in_features, seed=13).to(self.device)
        expected = method.apply(weights, rows)
        for count in (1, 2, 3, 4, 7, 16, 17, 64, 129):
            assert torch.equal(method.apply(weights, rows[:count]), expected[:count]), f"{count} rows"

        @quick
        @given(count=st.integers(1, self.most_rows), seed=st.integers(0, 1000))
        def check(count: int, seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            picked = torch.randperm(self.most_rows, generator=generator)[:count].to(self.device)
            crowd = random(3, in_features, seed=seed + 1).to(self.device) * 1e3
            batch = torch.cat((crowd, rows[picked]))
            assert torch.equal(method.apply(weights, batch)[3:], expected[picked])

        check()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


__all__ = ["LinearSuite", "random"]
