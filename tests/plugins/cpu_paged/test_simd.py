"""The vector operations that numba does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from llmkit_cpu_paged import simd
from llmkit_cpu_paged.jit import kernel

SPECIAL = [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-40, 65504.0, 65520.0, 3.3e38, 1.00390625, 1.01171875]


@kernel
def exp_of(x: Any, out: Any) -> None:
    for c in range(0, x.shape[1], simd.LANES):
        simd.store(out, 0, c, simd.exp(simd.load(x, 0, c)))


@kernel
def tanh_of(x: Any, out: Any) -> None:
    for c in range(0, x.shape[1], simd.LANES):
        simd.store(out, 0, c, simd.tanh(simd.load(x, 0, c)))


@kernel
def convert(x: Any, out: Any) -> None:
    for c in range(0, x.shape[1], simd.LANES):
        simd.store(out, 0, c, simd.load(x, 0, c))


@kernel
def convert_each(x: Any, out: Any) -> None:
    for c in range(x.shape[1]):
        simd.store_one(out, 0, c, simd.load_one(x, 0, c))


@kernel
def reduce(x: Any, out: Any) -> None:
    out[0, 0] = simd.largest(simd.load(x, 0, 0))
    out[0, 1] = simd.total(simd.load(x, 0, 0))
    out[0, 2] = simd.first(simd.load(x, 0, 0))
    simd.store(out, 1, 0, simd.keep(simd.load(x, 0, 0), 3, 5, np.float32(7)))


def test_exp_is_right_to_two_units_in_the_last_place() -> None:
    x = np.linspace(-86.9, 87.9, 1 << 16, dtype=np.float32)[None]
    out = np.empty_like(x)
    exp_of(x, out)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(out - exact) / np.spacing(exact.astype(np.float32))).max() <= 2


def test_exp_at_the_ends() -> None:
    x = np.full((1, simd.LANES), -np.inf, np.float32)
    x[0, 1:5] = -1e30, -88, 0, np.nan
    out = np.empty_like(x)
    exp_of(x, out)
    assert (out[0, :3] < 2e-38).all()
    assert out[0, 3] == 1
    assert np.isnan(out[0, 4]), "a NaN must show"


def test_tanh() -> None:
    x = np.linspace(-50, 50, 1 << 14, dtype=np.float32)[None]
    out = np.empty_like(x)
    tanh_of(x, out)
    assert np.abs(out - np.tanh(x.astype(np.float64))).max() < 3e-7


@pytest.mark.parametrize("change", [convert, convert_each], ids=["lanes", "one"])
@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.bfloat16, torch.uint16), (torch.float16, torch.int16)], ids=str
)
def test_halves_are_rounded_as_torch_does(change: Any, dtype: torch.dtype, bits: torch.dtype) -> None:
    random = torch.randint(-(2**31), 2**31 - 1, (4096 - 16,), dtype=torch.int32).view(torch.float32)
    x = torch.cat((torch.tensor(SPECIAL + [np.nan] * 5), random))[None]
    expected = x.to(dtype)
    stored = torch.empty_like(expected)
    change(x.numpy(), stored.view(bits).numpy())
    torch.testing.assert_close(stored, expected, rtol=0, atol=0, equal_nan=True)
    back = torch.empty_like(x)
    change(stored.view(bits).numpy(), back.numpy())
    torch.testing.assert_close(back, expected.float(), rtol=0, atol=0, equal_nan=True)


def test_reductions_and_masks() -> None:
    x = np.arange(16, dtype=np.float32)[None] - 8
    out = np.empty((2, 16), np.float32)
    reduce(x, out)
    assert out[0, :3].tolist() == [7, -8, -8]
    assert out[1].tolist() == [7] * 3 + [-5, -4] + [7] * 11
