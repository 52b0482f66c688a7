"""The CPU's linear methods in the linear suite, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from llmkit import CheckpointError
from llmkit.contracts import LinearEnv, LinearSpec
from llmkit.nn import TensorRef
from llmkit.testing.components import create
from llmkit.testing.linear import LinearSuite


class TestFp16Weights(LinearSuite):
    method = "fp16-weights"
    tolerances = {"float32": 1e-3}
    embedding_tolerance = 2**-11


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
