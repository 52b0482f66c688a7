"""Attention over K and V stored as int8 with their scales in the same block.

A block of ``block_size`` tokens holds, one after the other::

    scales of K   float32 [block_size, scales]      scales = kv_heads, or 1
    scales of V   float32 [block_size, scales]
    K             int8    [block_size, kv_heads, head_size]
    V             int8    [block_size, kv_heads, head_size_v]

The engine copies, frees and hands out these blocks without knowing any of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from llmkit.contracts import (
    AttentionPlan,
    AttentionSpec,
    BackendSpec,
    BatchLayout,
    GraphSupport,
    KVCacheSpec,
    KVMemory,
    LayerInputs,
)

LARGEST = 127
ALIGNMENT = 16
"""Blocks are whole multiples of so many bytes, so that their floats are aligned."""


@dataclass
class Half:
    """Views of one layer's K, or of its V, in every block."""

    numbers: Tensor
    """int8 [num_blocks, block_size, kv_heads, size]"""
    scales: Tensor
    """float32 [num_blocks, block_size, scales]"""

    def write(self, values: Tensor, blocks: Tensor, places: Tensor) -> None:
        """Quantize ``values`` [tokens, kv_heads, size] into these places of these blocks."""
        scales = values.abs().amax(dim=2).float() / LARGEST
        if self.scales.shape[2] == 1:
            scales = scales.amax(dim=1, keepdim=True)
        steps = scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(2)
        self.numbers[blocks, places] = (values.float() / steps).round().to(torch.int8)
        self.scales[blocks, places] = scales

    def read(self, blocks: Tensor, start: int, end: int) -> Tensor:
        """Tokens ``start`` to ``end`` of these blocks, float32 [tokens, kv_heads, size]."""
        numbers = self.numbers[blocks].flatten(0, 1)[start:end]
        return numbers.float() * self.scales[blocks].flatten(0, 1)[start:end].unsqueeze(2)


class Int8Plan:
    """The step's layout as the host has it."""

    layout: BatchLayout

    def update(self, layout: BatchLayout) -> None:
        self.layout = layout


class Int8Backend:
    """Owns views of the pool; works through a step row after row in plain torch."""

    row_invariant = False
    graph_support: GraphSupport = "none"
    fused_rope = False

    def __init__(self, spec: BackendSpec, per_head: bool) -> None:
        self._spec = spec
        self._per_head = per_head
        self._layers: list[tuple[Half, Half, int]] = []
        """K, V and the KV group of each layer."""

    def kv_cache_spec(self, layer: int) -> KVCacheSpec:
        spec, block_size = self._spec.layers[layer], self._spec.block_size
        encoding = "int8-kv:per-head" if self._per_head else "int8-kv:per-token"
        if spec.shares is not None:
            return KVCacheSpec("shared", block_size, 0, encoding, shares=spec.shares)
        block_bytes = sum(self._sizes(spec))
        if spec.window is None:
            return KVCacheSpec("full", block_size, block_bytes, encoding)
        return KVCacheSpec("sliding", block_size, block_bytes, encoding, window=spec.window)

    def bind(self, memory: KVMemory) -> None:
        for index, spec in enumerate(self._spec.layers):
            if spec.shares is not None:
                self._layers.append(self._layers[spec.shares])
                continue
            scales_k, scales_v, k, v, _ = torch.split(memory.layer(index), list(self._sizes(spec)), dim=1)
            heads, tokens = spec.num_kv_heads, self._spec.block_size
            keys = Half(
                k.view(torch.int8).view(-1, tokens, heads, spec.head_size),
                scales_k.view(torch.float32).view(-1, tokens, self._scales(spec)),
            )
            values = Half(
                v.view(torch.int8).view(-1, tokens, heads, spec.head_size_v),
                scales_v.view(torch.float32).view(-1, tokens, self._scales(spec)),
            )
            self._layers.append((keys, values, memory.group(index)))

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> Int8Plan:
        return Int8Plan()

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        assert isinstance(plan, Int8Plan)
        layout, spec = plan.layout, self._spec.layers[inputs.layer]
        keys, values, group = self._layers[inputs.layer]
        if inputs.k is not None and inputs.v is not None:
            self._write(inputs.k, inputs.v, layout, inputs.layer)
        table = torch.as_tensor(layout.block_tables[group], dtype=torch.int64)
        for row in range(layout.num_rows):
            first, last = int(layout.query_start[row]), int(layout.query_start[row + 1])
            if first == last:
                continue
            end = int(layout.seq_lens[row])
            start = max(0, end - (last - first) - spec.window + 1) if spec.window else 0
            first_block = start // self._spec.block_size
            blocks = table[row, first_block : -(-end // self._spec.block_size)].to(out.device)
            offset = first_block * self._spec.block_size
            k = keys.read(blocks, start - offset, end - offset)
            v = values.read(blocks, start - offset, end - offset)
            out[first:last] = _attention(inputs.q[first:last], k, v, end - start, spec)

    def _write(self, k: Tensor, v: Tensor, layout: BatchLayout, layer: int) -> None:
        keys, values, group = self._layers[layer]
        slots = torch.as_tensor(layout.slot_mapping[group][: layout.num_tokens], dtype=torch.int64).to(
            k.device
        )
        tokens = (slots >= 0).nonzero().squeeze(1)
        blocks, places = slots[tokens] // self._spec.block_size, slots[tokens] % self._spec.block_size
        keys.write(k[tokens], blocks, places)
        values.write(v[tokens], blocks, places)

    def _scales(self, spec: AttentionSpec) -> int:
        return spec.num_kv_heads if self._per_head else 1

    def _sizes(self, spec: AttentionSpec) -> tuple[int, ...]:
        """Bytes of scales of K, scales of V, K, V and padding."""
        tokens, heads = self._spec.block_size, spec.num_kv_heads
        scales = 4 * tokens * self._scales(spec)
        k, v = tokens * heads * spec.head_size, tokens * heads * spec.head_size_v
        return scales, scales, k, v, -(2 * scales + k + v) % ALIGNMENT


def _attention(q: Tensor, k: Tensor, v: Tensor, length: int, spec: AttentionSpec) -> Tensor:
    """The last ``len(q)`` of ``length`` tokens attend over all of them: [queries, heads, head_size_v]."""
    positions = torch.arange(length, device=q.device)
    distance = positions[length - len(q) :, None] - positions
    seen = (distance >= 0) & (distance < (spec.window or math.inf))
    q, k, v = (tensor.float().transpose(0, 1) for tensor in (q, k, v))
    result = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=spec.scale, enable_gqa=spec.num_heads != spec.num_kv_heads
    )
    return result.transpose(0, 1)
