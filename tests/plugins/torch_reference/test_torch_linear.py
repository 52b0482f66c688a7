"""Linear method ``torch`` in the linear suite, and that it loads without a second copy."""

from __future__ import annotations

import torch

from llmkit.contracts import LinearEnv, LinearSpec
from llmkit.nn import TensorRef
from llmkit.testing.components import create
from llmkit.testing.linear import LinearSuite


class TestTorch(LinearSuite):
    method = "torch"
    most_rows = 140


def test_a_single_part_is_taken_as_it_is() -> None:
    """A view of the mapped file stays one."""
    method = create("linear", "torch", LinearEnv("cpu", "float32", "dense", False))
    weights = method.create(LinearSpec("layer", 4, (3,)))
    tensor = torch.randn(3, 4)
    method.load(weights, 0, TensorRef("layer.weight", tensor))
    method.finish(weights)
    assert weights.weight.data_ptr() == tensor.data_ptr()
