"""Backend ``reference``: attention in plain torch, one row after the other. Slow, and the oracle.

A block holds K ``[block_size, kv_heads, head_size]``, then V ``[block_size, kv_heads, head_size_v]``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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


class ReferencePlan:
    """The step's layout as the host has it, and its slots on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.layout: BatchLayout | None = None
        self.block_tables: tuple[Tensor, ...] = ()
        """A group each: int64 [rows, max_blocks]."""
        self.written: tuple[tuple[Tensor, Tensor], ...] = ()
        """A group each: the tokens that are stored, and their slots; int64."""

    def update(self, layout: BatchLayout) -> None:
        self.layout = layout
        self.block_tables = tuple(self._to_device(table[: layout.num_rows]) for table in layout.block_tables)
        written = []
        for mapping in layout.slot_mapping:
            slots = self._to_device(mapping[: layout.num_tokens])
            tokens = (slots >= 0).nonzero().squeeze(1)
            written.append((tokens, slots[tokens]))
        self.written = tuple(written)

    def _to_device(self, array: object) -> Tensor:
        return torch.as_tensor(array, dtype=torch.int64).to(self._device, copy=True)


class ReferenceBackend:
    """Owns views of the pool, nothing else."""

    row_invariant = False
    graph_support: GraphSupport = "none"
    fused_rope = False

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._device = torch.device(spec.device)
        name = spec.dtype if spec.kv_cache_dtype == "auto" else spec.kv_cache_dtype
        self._kv_dtype: torch.dtype = getattr(torch, name)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._groups: list[int] = []

    def kv_cache_spec(self, layer: int) -> KVCacheSpec:
        spec = self._spec.layers[layer]
        block_size = self._spec.block_size
        encoding = f"reference:{str(self._kv_dtype).removeprefix('torch.')}"
        if spec.shares is not None:
            return KVCacheSpec("shared", block_size, 0, encoding, shares=spec.shares)
        if spec.mask == "bidirectional":
            return KVCacheSpec("none", block_size, 0, encoding)
        width = spec.num_kv_heads * (spec.head_size + spec.head_size_v)
        block_bytes = block_size * width * self._kv_dtype.itemsize
        if spec.window is None:
            return KVCacheSpec("full", block_size, block_bytes, encoding)
        return KVCacheSpec("sliding", block_size, block_bytes, encoding, window=spec.window)

    def bind(self, memory: KVMemory) -> None:
        for layer, spec in enumerate(self._spec.layers):
            if spec.shares is not None:
                self._keys.append(self._keys[spec.shares])
                self._values.append(self._values[spec.shares])
                self._groups.append(self._groups[spec.shares])
            elif spec.mask == "bidirectional":
                nothing = torch.empty(0)
                self._keys.append(nothing)
                self._values.append(nothing)
                self._groups.append(-1)
            else:
                elements = memory.layer(layer).view(self._kv_dtype)
                heads, block_size = spec.num_kv_heads, self._spec.block_size
                split = block_size * heads * spec.head_size
                end = split + block_size * heads * spec.head_size_v
                self._keys.append(elements[:, :split].view(-1, block_size, heads, spec.head_size))
                self._values.append(elements[:, split:end].view(-1, block_size, heads, spec.head_size_v))
                self._groups.append(memory.group(layer))

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> ReferencePlan:
        return ReferencePlan(self._device)

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        assert isinstance(plan, ReferencePlan)
        layer, spec = inputs.layer, self._spec.layers[inputs.layer]
        layout = plan.layout
        assert layout is not None, "the plan was never updated"
        cached = self._groups[layer] >= 0
        if cached and spec.shares is None:
            self._store(inputs, plan)
        for row in range(layout.num_rows):
            first, last = int(layout.query_start[row]), int(layout.query_start[row + 1])
            if first == last:
                continue
            if not cached:
                out[first:last] = _uncached(inputs, first, last, spec)
                continue
            end = int(layout.seq_lens[row])
            start = max(0, end - (last - first) - spec.window + 1) if spec.window else 0
            keys, values = self._read(layer, plan, row, start, end)
            out[first:last] = _attention(inputs.q[first:last], keys, values, start, end, spec)

    def _store(self, inputs: LayerInputs, plan: ReferencePlan) -> None:
        assert inputs.k is not None
        assert inputs.v is not None
        tokens, slots = plan.written[self._groups[inputs.layer]]
        place = (slots // self._spec.block_size, slots % self._spec.block_size)
        self._keys[inputs.layer][place] = inputs.k[tokens].to(self._kv_dtype)
        self._values[inputs.layer][place] = inputs.v[tokens].to(self._kv_dtype)

    def _read(self, layer: int, plan: ReferencePlan, row: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """K and V of positions ``start`` to ``end``; no block behind ``start`` is touched."""
        size = self._spec.block_size
        first_block = start // size
        blocks = plan.block_tables[self._groups[layer]][row, first_block : -(-end // size)]
        window = slice(start - first_block * size, end - first_block * size)
        return self._keys[layer][blocks].flatten(0, 1)[window], self._values[layer][blocks].flatten(0, 1)[
            window
        ]


def _uncached(inputs: LayerInputs, first: int, last: int, spec: AttentionSpec) -> Tensor:
    """Tokens ``first`` to ``last`` attend to each other; torch's own kernel where it knows the kind."""
    assert inputs.k is not None
    assert inputs.v is not None
    q, k, v = inputs.q[first:last], inputs.k[first:last], inputs.v[first:last]
    if spec.soft_cap is not None or spec.window is not None:
        return _attention(q, k, v, 0, last - first, spec)
    return F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        is_causal=spec.mask == "causal",
        scale=spec.scale,
        enable_gqa=spec.num_heads != spec.num_kv_heads,
    )[0].transpose(0, 1)


def _attention(q: Tensor, keys: Tensor, values: Tensor, start: int, end: int, spec: AttentionSpec) -> Tensor:
    """The last ``len(q)`` of positions below ``end`` attend over positions ``start`` to ``end``.

    q [queries, heads, size], keys and values [keys, kv_heads, size] -> [queries, heads, size_v]; in fp32.
    """
    group = spec.num_heads // spec.num_kv_heads
    keys = keys.float().repeat_interleave(group, dim=1)
    values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    positions = torch.arange(end - len(q), end, device=q.device)[:, None]
    key_positions = torch.arange(start, end, device=q.device)
    visible = torch.ones(len(q), end - start, dtype=torch.bool, device=q.device)
    if spec.mask == "causal":
        visible &= key_positions <= positions
    if spec.window is not None:
        visible &= key_positions > positions - spec.window
        visible &= key_positions < positions + spec.window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
