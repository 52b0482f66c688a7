"""The torch operations: what they compute, and that a row's bits do not depend on its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llmkit.contracts import OP_NAMES, OpsEnv
from llmkit.nn import bind_ops, torch_ops
from llmkit.nn.ops import add_rms_norm, rms_norm, rope, silu_mul, silu_mul_row_invariant
from llmkit.registry import Entry, Registry

ENV = OpsEnv("cpu", "float32", deterministic=False)
CAREFUL = OpsEnv("cpu", "float32", deterministic=True)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Threads cut a tensor at places that depend on its size."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def _ops(width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Every deterministic operation as a function of rows ``[tokens, width]``."""
    ops = torch_ops(CAREFUL)
    weight = torch.randn(width, generator=torch.Generator().manual_seed(1))
    angle = torch.randn(1, width // 4, generator=torch.Generator().manual_seed(2))

    def rotated(x: Tensor) -> Tensor:
        q, k = x.clone().view(len(x), 2, -1), x.clone().view(len(x), 2, -1)
        ops.rope(q, k, angle.cos().expand(len(x), -1), angle.sin().expand(len(x), -1))
        return torch.cat([q, k], 1)

    return {
        "rms_norm": lambda x: ops.rms_norm(x, weight, 1e-5),
        "add_rms_norm": lambda x: ops.add_rms_norm(x, x * 2, weight, 1e-5),
        "silu_mul": ops.silu_mul,
        "rope": rotated,
    }


@pytest.mark.parametrize("width", [12, 96, 100, 1156, 3072])
def test_rows_do_not_depend_on_the_batch(width: int, threads: int) -> None:
    rows = torch.randn(257, width, generator=torch.Generator().manual_seed(0)) * 4
    ops = _ops(width)
    for name, op in ops.items():
        together = op(rows)
        for start, count in ((0, 1), (5, 1), (256, 1), (3, 7), (100, 64), (1, 255)):
            some = op(rows[start : start + count].clone())
            assert torch.equal(some, together[start : start + count]), name


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 90), st.integers(1, 200), st.integers(0, 2**31), st.data())
def test_any_cut_gives_the_same_bits(tokens: int, half: int, seed: int, data: st.DataObject) -> None:
    rows = torch.randn(tokens, 4 * half, generator=torch.Generator().manual_seed(seed)) * 4
    cut = data.draw(st.integers(0, tokens))
    for name, op in _ops(4 * half).items():
        apart = torch.cat([op(part.clone()) for part in (rows[:cut], rows[cut:]) if len(part)])
        assert torch.equal(apart, op(rows)), name


def test_a_row_larger_than_one_threads_share(threads: int) -> None:
    row = torch.randn(3, 2 * 40000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(silu_mul_row_invariant(row)[1:2], silu_mul_row_invariant(row[1:2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 40, generator=generator).to(dtype)
    weight = torch.randn(40, generator=generator).to(dtype)
    exact = x.double()
    normed = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), normed, **tolerance)
    gated = exact[:, :20] * exact[:, :20].sigmoid() * exact[:, 20:]
    for op in (silu_mul, silu_mul_row_invariant):
        torch.testing.assert_close(op(x).double(), gated, **tolerance)


def test_add_rms_norm_adds_in_place() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    total = x + residual
    assert torch.equal(add_rms_norm(x, residual, weight, 1e-6), rms_norm(total, weight, 1e-6))
    assert torch.equal(residual, total)


def test_rope_turns_pairs_of_halves_and_leaves_the_rest() -> None:
    angle = torch.tensor([[0.3, 1.1]])
    q, k = torch.randn(1, 2, 6), torch.randn(1, 1, 6)
    before = q.clone()
    rope(q, k, angle.cos(), angle.sin())
    pairs = torch.complex(before[..., :2], before[..., 2:4]) * torch.polar(torch.ones(1, 1, 2), angle[None])
    torch.testing.assert_close(q[..., :4], torch.cat([pairs.real, pairs.imag], -1))
    assert torch.equal(q[..., 4:], before[..., 4:])


def test_rope_takes_views_of_a_fused_product() -> None:
    angle = torch.randn(4, 3)
    fused = torch.randn(4, 5, 6)
    apart = fused[:, :3].clone(), fused[:, 3:4].clone()
    rope(fused[:, :3], fused[:, 3:4], angle.cos(), angle.sin())
    rope(*apart, angle.cos(), angle.sin())
    assert torch.equal(fused[:, :4], torch.cat(apart, 1))


def _fake(*names: str) -> Callable[[OpsEnv, Any], dict[str, Callable[..., Any]]]:
    def op(*args: Any) -> str:
        return "fake"

    return lambda env, options: dict.fromkeys(names, op)


def test_each_operation_comes_from_the_best_that_offers_it() -> None:
    registry = Registry()
    registry.add([
        Entry("ops", "slow", _fake("rms_norm", "silu_mul"), "a", priority=1),
        Entry("ops", "fast", _fake("rms_norm"), "a", priority=9),
        Entry("ops", "unwilling", _fake(*OP_NAMES), "a", priority=99, refuses=lambda env: "no such device"),
    ])  # fmt: skip
    ops, choices = bind_ops(registry, ENV)
    assert [(choice.name, choice.why) for choice in choices] == [
        ("fast", "rms_norm"),
        ("slow", "silu_mul"),
        ("torch", "add_rms_norm, rope"),
    ]
    assert ops.rms_norm is not rms_norm
    assert ops.add_rms_norm is add_rms_norm
    assert ops.rope is rope


def test_torch_alone_when_nobody_offers_anything() -> None:
    ops, choices = bind_ops(Registry(), CAREFUL)
    assert ops.silu_mul is silu_mul_row_invariant
    assert [choice.name for choice in choices] == ["torch"]
