"""The CPU's linear methods in the linear suite, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from llmkit import CheckpointError, EngineError
from llmkit.contracts import LinearEnv, LinearSpec
from llmkit.nn import TensorRef
from llmkit.testing.components import create
from llmkit.testing.linear import LinearSuite


class TestFp16Weights(LinearSuite):
    method = "fp16-weights"
    tolerances = {"float32": 1e-3}
    embedding_tolerance = 2**-11  # of a float32 checkpoint


class TestPacked(LinearSuite):
    method = "packed"
    tolerances = {"float32": 1e-5}


def test_a_weight_beyond_fp16_is_named() -> None:
    method = create("linear", "fp16-weights", LinearEnv("cpu", "float32", "dense", False))
    weights = method.create(LinearSpec("head", 2, (2,)))
    with pytest.raises(CheckpointError, match=r"head\.weight.*65504.*--quantization packed"):
        method.load(weights, 0, TensorRef("head.weight", torch.tensor([[1.0, 2.0], [3.0, 7e4]])))


def test_small_weights_keep_their_subnormal_bits() -> None:
    method = create("linear", "fp16-weights", LinearEnv("cpu", "float32", "dense", False))
    small = torch.linspace(-6e-5, 6e-5, 64).view(1, 64)
    weights = method.create(LinearSpec("small", 64, (1,)))
    method.load(weights, 0, TensorRef("small.weight", small))
    method.finish(weights)
    assert torch.equal(method.apply(weights, torch.eye(64)).T, small.half().float())


@pytest.mark.parametrize(
    ("name", "dtype", "bytes_of_rows"),
    [
        ("fp16-weights", torch.float16, 2),
        ("fp16-weights", torch.bfloat16, 2),
        ("fp16-weights", torch.float32, 2),
        ("packed", torch.float16, 2),
        ("packed", torch.float32, 4),
    ],
    ids=str,
)
def test_a_tied_layer_keeps_readable_rows_and_counts_them(
    name: str, dtype: torch.dtype, bytes_of_rows: int
) -> None:
    """The checkpoint's own values, as they are mapped, unless they are larger than those it multiplies by."""
    method = create("linear", name, LinearEnv("cpu", "float32", "dense", False))
    tensor = torch.randn(48, 32).to(dtype)
    held = {}
    for tied in (False, True):
        weights = method.create(LinearSpec("head", 32, (48,), tied=tied))
        method.load(weights, 0, TensorRef("head.weight", tensor))
        method.finish(weights)
        held[tied] = method.resident_bytes(weights)
    assert held[True] - held[False] == 48 * 32 * bytes_of_rows
    if tensor.itemsize == bytes_of_rows:
        assert weights.rows.data_ptr() == tensor.data_ptr(), "a view of the mapped file stays one"
        assert torch.equal(method.embed(weights, torch.arange(48)), tensor.float())


def test_rows_of_a_layer_that_is_not_tied_are_refused_by_name() -> None:
    method = create("linear", "packed", LinearEnv("cpu", "float32", "dense", False))
    weights = method.create(LinearSpec("lm_head", 2, (2,)))
    with pytest.raises(EngineError, match="lm_head was not made as a tied one"):
        method.embed(weights, torch.tensor([0]))


@pytest.mark.parametrize("name", ["fp16-weights", "packed"])
@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (LinearEnv("cuda", "float32", "dense", False), "device is cuda"),
        (LinearEnv("cpu", "bfloat16", "dense", False), "dtype is bfloat16"),
    ],
    ids=["device", "dtype"],
)
def test_refuses(name: str, env: LinearEnv, reason: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=reason):
        create("linear", name, env)
