"""The suite of operations fails for those that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

from llmkit.contracts import OpName, OpsEnv
from llmkit.nn import torch_ops
from llmkit.testing.ops import OpsSuite

RIGHT = torch_ops(OpsEnv("cpu", "float32", deterministic=True))


def other_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return RIGHT.rms_norm(x, weight, 1e-6)


def eps_outside_the_root(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + eps) * weight).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return RIGHT.rms_norm(x - x.mean(-1, keepdim=True), weight, eps)


def weight_plus_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return RIGHT.rms_norm(x, weight + 1, eps)


def sums_in_halves(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return RIGHT.rms_norm(x.bfloat16().to(x.dtype), weight, eps)


def keeps_the_residual(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return RIGHT.rms_norm(residual + x, weight, eps)


def norm_of_x_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.add_(x)
    return RIGHT.rms_norm(x, weight, eps)


def interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """GPT-J's pairs: neighbours instead of halves."""
    for heads in (q, k):
        part = heads[..., : 2 * cos.shape[1]]
        even, odd = part[..., ::2].clone(), part[..., 1::2].clone()
        part[..., ::2] = even * cos[:, None] - odd * sin[:, None]
        part[..., 1::2] = odd * cos[:, None] + even * sin[:, None]


def backwards(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    RIGHT.rope(q, k, cos, -sin)


def forgets_k(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    RIGHT.rope(q, k.clone(), cos, sin)


def by_the_first_position(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    RIGHT.rope(q, k, cos[:1].expand_as(cos), sin[:1].expand_as(sin))


def pairs_over_the_whole_head(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Pairs entry ``i`` with ``size / 2 + i``, also where only a part is rotated."""
    half = cos.shape[1]
    for heads in (q, k):
        middle = heads.shape[2] // 2
        low, high = heads[..., :half].clone(), heads[..., middle : middle + half].clone()
        heads[..., :half] = low * cos[:, None] - high * sin[:, None]
        heads[..., middle : middle + half] = high * cos[:, None] + low * sin[:, None]


def gate_last(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return functional.silu(x[:, half:]) * x[:, :half]


def gelu(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return functional.gelu(x[:, :half], approximate="tanh") * x[:, half:]


def overflows(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    grown = x[:, :half].exp()
    return x[:, :half] * grown / (1 + grown) * x[:, half:]


def depends_on_the_batch(x: Tensor) -> Tensor:
    return RIGHT.silu_mul(x) * (1 + 2**-23 * (len(x) % 2))


def ignores_strides(x: Tensor) -> Tensor:
    return RIGHT.silu_mul(x.as_strided(x.shape, (x.shape[1], 1)))


WIDE, PARTIAL, WHOLE = {"width": 576}, {"size": 64, "rotary": 32}, {"size": 64, "rotary": 64}


@pytest.mark.parametrize(
    ("name", "op", "test", "arguments"),
    [
        ("rms_norm", other_eps, "test_rms_norm", WIDE),
        ("rms_norm", eps_outside_the_root, "test_rms_norm", WIDE),
        ("rms_norm", layer_norm, "test_rms_norm", WIDE),
        ("rms_norm", weight_plus_one, "test_rms_norm", WIDE),
        ("rms_norm", sums_in_halves, "test_rms_norm", WIDE),
        ("add_rms_norm", keeps_the_residual, "test_add_rms_norm", WIDE),
        ("add_rms_norm", norm_of_x_alone, "test_add_rms_norm", WIDE),
        ("rope", interleaved, "test_rope", WHOLE),
        ("rope", backwards, "test_rope", WHOLE),
        ("rope", forgets_k, "test_rope", WHOLE),
        ("rope", by_the_first_position, "test_rope", WHOLE),
        ("rope", pairs_over_the_whole_head, "test_rope", PARTIAL),
        ("silu_mul", gate_last, "test_silu_mul", WIDE),
        ("silu_mul", gelu, "test_silu_mul", WIDE),
        ("silu_mul", overflows, "test_silu_mul_far_from_zero", {}),
        ("silu_mul", ignores_strides, "test_any_strides", {"arrangement": "columns of one product"}),
        ("silu_mul", depends_on_the_batch, "test_rows_do_not_depend_on_the_batch", {"width": 50}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_operation_fails(
    name: OpName, op: Callable[..., Any], test: str, arguments: dict[str, Any]
) -> None:
    if test == "test_rows_do_not_depend_on_the_batch":
        arguments = {**arguments, "name": name}
    getattr(suite(name, getattr(RIGHT, name)), test)(**arguments)
    with pytest.raises(AssertionError):
        getattr(suite(name, op), test)(**arguments)


def suite(planted: OpName, op: Callable[..., Any]) -> OpsSuite:
    class Planted(OpsSuite):
        def both(
            self, name: OpName, dtype: str, num_threads: int = 2
        ) -> tuple[Callable[..., Any], Callable[..., Any]]:
            right = getattr(RIGHT, name)
            return (op if name == planted else right), right

    return Planted()
