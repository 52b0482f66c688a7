"""What every set of fused operations must do. In a plugin's tests::

class TestMine(OpsSuite):
    ops = "mine"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from llmkit.contracts import OP_NAMES, OpName, OpsEnv
from llmkit.nn import torch_ops
from llmkit.testing.attention_driver import ARRANGEMENTS
from llmkit.testing.components import create
from llmkit.testing.linear import random

ROWS = (1, 2, 9, 70, 300)
WIDTHS = (576, 64, 50, 7)


class OpsSuite:
    """Subclass it and name the plugin's operations; those it lacks are skipped. Since 0.1."""

    ops: ClassVar[str] = ""
    plugin: ClassVar[str | None] = None
    """To enable, where the operations are not built in."""
    plugin_options: ClassVar[Mapping[str, str]] = {}
    device: ClassVar[str] = "cpu"
    tolerances: ClassVar[Mapping[str, float]] = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-3}
    """dtype -> largest difference from torch in float64, over values of about 1. Those tested."""

    @pytest.mark.parametrize("width", WIDTHS)
    def test_rms_norm(self, width: int) -> None:
        for dtype in self.tolerances:
            op, oracle = self.both("rms_norm", dtype)
            weight = self.tensor(width, seed=1, dtype=dtype)
            for rows in ROWS:
                x = self.tensor(rows, width, seed=rows, dtype=dtype)
                self.close(op(x, weight, 1e-5), oracle(x.double(), weight.double(), 1e-5), dtype)
                faint = x * 2**-8  # the mean of squares is as small as eps
                self.close(op(faint, weight, 1e-5), oracle(faint.double(), weight.double(), 1e-5), dtype)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_add_rms_norm(self, width: int) -> None:
        for dtype in self.tolerances:
            op, oracle = self.both("add_rms_norm", dtype)
            weight = self.tensor(width, seed=1, dtype=dtype)
            for rows in ROWS:
                x, residual = (self.tensor(rows, width, seed=rows + plus, dtype=dtype) for plus in (0, 1))
                summed = residual + x
                normed = op(x, residual, weight, 1e-5)
                assert torch.equal(residual, summed), "the sum is added into the residual, rounded once"
                self.close(normed, oracle(x.double() * 0, summed.double(), weight.double(), 1e-5), dtype)

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_any_strides(self, arrangement: str) -> None:
        """Of what is read and of what is changed in place."""
        arrange = ARRANGEMENTS[arrangement]

        def flat(tensor: Tensor) -> Tensor:
            return arrange(tensor[:, None], tensor[:, None])[0][:, 0]

        for name in OP_NAMES:
            op, oracle = self.both(name, self.dtype)
            x, y = (self.tensor(9, 64, seed=seed, dtype=self.dtype) for seed in (1, 2))
            if name == "rope":
                heads = arrange(x.view(9, 2, 32).clone(), y.view(9, 2, 32).clone())
                expected = [tensor.double() for tensor in heads]
                cos, sin = x[:, :16].contiguous(), y[:, :16].contiguous()
                oracle(*expected, cos.double(), sin.double())
                op(*heads, flat(cos), flat(sin))
                for actual, wanted in zip(heads, expected, strict=True):
                    self.close(actual, wanted, self.dtype)
            elif name == "silu_mul":
                self.close(op(flat(x)), oracle(x.double()), self.dtype, scale=10.0)
            elif name == "rms_norm":
                self.close(op(flat(x), y[0], 1e-5), oracle(x.double(), y[0].double(), 1e-5), self.dtype)
            else:
                residual = flat(y.clone())
                normed = op(flat(x), residual, y[0], 1e-5)
                assert torch.equal(residual, x + y)
                expected_norm = oracle(x.double(), y.double(), y[0].double(), 1e-5)
                self.close(normed, expected_norm, self.dtype, scale=5.0)

    @pytest.mark.parametrize(("size", "rotary"), [(64, 64), (64, 32), (20, 12), (80, 80)])
    def test_rope(self, size: int, rotary: int) -> None:
        """In place, on columns of one fused product, with a rotary part below the head size."""
        for dtype in self.tolerances:
            op, oracle = self.both("rope", dtype)
            for rows in ROWS:
                fused = self.tensor(rows, 5 * size, seed=rows, dtype=dtype)
                angles = random(rows, rotary // 2, seed=rows + 1).to(self.device) * 3
                cos, sin = (table.to(getattr(torch, dtype)) for table in (angles.cos(), angles.sin()))
                expected = fused.double().view(rows, 5, size)
                oracle(expected[:, :3], expected[:, 3:], cos.double(), sin.double())
                heads = fused.view(rows, 5, size)
                op(heads[:, :3], heads[:, 3:], cos, sin)
                self.close(heads, expected, dtype)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_silu_mul(self, width: int) -> None:
        for dtype in self.tolerances:
            op, oracle = self.both("silu_mul", dtype)
            for rows in ROWS:
                x = self.tensor(rows, 2 * width, seed=rows, dtype=dtype) * 3
                self.close(op(x), oracle(x.double()), dtype, scale=10.0)

    def test_silu_mul_far_from_zero(self) -> None:
        """No overflow where exp has one."""
        op, _ = self.both("silu_mul", self.dtype)
        gate = torch.tensor([-1e4, -200.0, -90.0, 0.0, 90.0, 200.0, 1e4], device=self.device)
        x = torch.cat((gate, torch.ones_like(gate)))[None].to(getattr(torch, self.dtype))
        self.close(op(x), gate.clamp(min=0)[None].double(), self.dtype, scale=1e3)

    @pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "rope", "silu_mul"])
    @pytest.mark.parametrize("width", [1536, 50])
    def test_rows_do_not_depend_on_the_batch(self, name: OpName, width: int) -> None:
        """Bit-equal alone, among others, at any place, with any number of threads."""
        results = []
        for threads in (1, 2):
            op, _ = self.both(name, self.dtype, num_threads=threads)
            for picked in (range(300), range(299, -1, -1), *([row] for row in (0, 7, 299)), range(5, 90)):
                rows = torch.tensor(list(picked), device=self.device)
                result = torch.full((300, width), torch.nan, device=self.device)
                result[rows] = self.apply(name, op, rows, width)
                results.append((rows, result))
        whole = results[0][1]
        for rows, result in results[1:]:
            assert torch.equal(result[rows], whole[rows])

    # ---- for subclasses that add cases ----

    @property
    def dtype(self) -> str:
        return next(iter(self.tolerances))

    def both(
        self, name: OpName, dtype: str, num_threads: int = 2
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The operation and torch's; skips the test where it is refused or lacking."""
        env = OpsEnv(self.device, dtype, deterministic=True, num_threads=num_threads)
        table = create("ops", self.ops, env, plugin=self.plugin, options=self.plugin_options)
        if name not in table:
            pytest.skip(f"{self.ops} does not offer {name}")
        return table[name], getattr(torch_ops(replace(env, deterministic=False)), name)

    def tensor(self, *shape: int, seed: int, dtype: str) -> Tensor:
        return random(*shape, seed=seed).to(getattr(torch, dtype)).to(self.device)

    def close(self, actual: Tensor, expected: Tensor, dtype: str, scale: float = 1.0) -> None:
        difference = (actual.double() - expected).abs()
        allowed = self.tolerances[dtype] * (scale + expected.abs())
        assert bool((difference <= allowed).all()), f"differs by {difference.max().item():.2e}"

    def apply(self, name: OpName, op: Callable[..., Any], rows: Tensor, width: int) -> Tensor:
        """``op`` on these rows of a fixed input of 300; [rows, width]."""
        x = self.tensor(300, width, seed=21, dtype=self.dtype)[rows]
        other = self.tensor(300, width, seed=22, dtype=self.dtype)[rows]
        weight = self.tensor(width, seed=23, dtype=self.dtype)
        if name == "rms_norm":
            return op(x, weight, 1e-5)  # type: ignore[no-any-return]
        if name == "add_rms_norm":
            return op(x, other, weight, 1e-5)  # type: ignore[no-any-return]
        if name == "silu_mul":
            return op(torch.cat((x, other), dim=1))  # type: ignore[no-any-return]
        q, k = x.view(len(rows), 1, width), other.view(len(rows), 1, width).clone()
        op(q, k, other[:, : width // 2].contiguous(), x[:, : width // 2].contiguous())
        return q.view(len(rows), width)


__all__ = ["OpsSuite"]
