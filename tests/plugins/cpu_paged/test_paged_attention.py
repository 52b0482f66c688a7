"""Backend ``paged-cpu`` in the attention suite, with every pair of dtypes that its kernels compile for."""

from __future__ import annotations

from llmkit.testing.attention import AttentionSuite


class TestPagedCpu(AttentionSuite):
    backend = "paged-cpu"


class TestPagedCpuStoringFloat32(AttentionSuite):
    backend = "paged-cpu"
    kv_cache_dtype = "float32"
    tolerances = {"bfloat16": 3e-2, "float16": 4e-3}


class TestPagedCpuStoringFloat16(AttentionSuite):
    backend = "paged-cpu"
    kv_cache_dtype = "float16"
    tolerances = {"float32": 4e-3, "bfloat16": 3e-2}


class TestPagedCpuStoringBfloat16(AttentionSuite):
    backend = "paged-cpu"
    kv_cache_dtype = "bfloat16"
    tolerances = {"float32": 3e-2, "float16": 3e-2}
