"""Backend ``paged-cpu`` in the attention suite."""

from __future__ import annotations

from llmkit.testing.attention import AttentionSuite


class TestPagedCpu(AttentionSuite):
    backend = "paged-cpu"


class TestPagedCpuStoringHalf(AttentionSuite):
    backend = "paged-cpu"
    kv_cache_dtype = "float16"
    tolerances = {"float32": 4e-3}
