"""The reference backend in the attention suite, and what it refuses."""

from __future__ import annotations

from llmkit.testing.attention import AttentionSuite


class TestReference(AttentionSuite):
    backend = "reference"
    block_sizes = (16, 8)


class TestReferenceStoringHalf(AttentionSuite):
    backend = "reference"
    kv_cache_dtype = "float16"
    tolerances = {"float32": 4e-3}
