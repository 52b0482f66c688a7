"""The CPU's fused operations in the ops suite."""

from __future__ import annotations

from llmkit.testing.ops import OpsSuite


class TestCpuFused(OpsSuite):
    ops = "cpu-fused"
    tolerances = {"float32": 2e-6}
