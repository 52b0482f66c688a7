"""SmolLM2-135M's sizes, which the measurements of single parts share."""

from __future__ import annotations

from llmkit.contracts import AttentionSpec

LAYERS = 30
LINEARS = {"qkv": (576, 960), "o": (576, 576), "gate-up": (576, 3072), "down": (1536, 576)}
"""(in_features, out_features) of each layer's."""
HEAD = (576, 49152)
ATTENTION = AttentionSpec(num_heads=9, num_kv_heads=3, head_size=64, head_size_v=64, scale=64**-0.5)
