"""Backend ``paged-cpu``: attention over block tables by compiled kernels."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

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
from llmkit_cpu_paged import kernels
from llmkit_cpu_paged.jit import compile_for
from llmkit_cpu_paged.memory import whole_rows, write_back
from llmkit_cpu_paged.simd import LANES
from llmkit_cpu_paged.team import Team

ALONE_BELOW = 500
"""Pairs of a query head and a key tile (about 0.1 us each) that do not pay for waking the team."""

_STORAGE = {"float32": np.float32, "float16": np.int16, "bfloat16": np.uint16}
"""What the kernels take memory for: numba has neither half type, so they go by their bits."""


class PagedCpuPlan:
    """A step's layout and its cut into tiles of queries. Refers to the layout's arrays."""

    def __init__(self) -> None:
        self.query_start = self.seq_lens = np.zeros(1, np.int32)
        self.block_tables: tuple[Any, ...] = ()
        self.slots: tuple[Any, ...] = ()
        self.tiles = np.zeros((0, 3), np.int32)
        """[tiles, 3]: row, its first query, number of queries."""
        self.num_tiles = 0
        self.work = 0
        """Pairs of a query token and a key tile."""
        self.counter = np.zeros(1, np.int64)

    def update(self, layout: BatchLayout) -> None:
        rows = layout.num_rows
        self.query_start, self.seq_lens = layout.query_start[: rows + 1], layout.seq_lens[:rows]
        self.block_tables = layout.block_tables
        self.slots = tuple(slots[: layout.num_tokens] for slots in layout.slot_mapping)
        lengths = np.diff(self.query_start)
        counts = -(-lengths // kernels.TILE_TOKENS)
        row = np.repeat(np.arange(rows, dtype=np.int32), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        offset = (np.arange(len(row), dtype=np.int32) - first) * kernels.TILE_TOKENS
        length = np.minimum(lengths[row] - offset, kernels.TILE_TOKENS)
        self.tiles = np.stack((row, offset, length), axis=1).astype(np.int32)
        self.num_tiles = len(row)
        seen = self.seq_lens[row] - lengths[row] + offset + length
        self.work = int((length * (-(-seen // LANES))).sum())


class PagedCpuBackend:
    """Owns views of the pool and its threads. Bit-equal for every batch and number of threads."""

    row_invariant = True
    graph_support: GraphSupport = "none"
    fused_rope = False

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._kv_dtype = spec.dtype if spec.kv_cache_dtype == "auto" else spec.kv_cache_dtype
        self._as_bits = {"float16": torch.int16, "bfloat16": torch.uint16}.get(spec.dtype)
        self._team = Team(spec.num_threads)
        self._caches: list[Any] = []
        """Each layer's [num_blocks, elements], or that of the layer it shares."""
        self._groups: list[int] = []
        self._tails = [_constants(layer, spec.block_size) for layer in spec.layers]
        _compile(_STORAGE[spec.dtype], _STORAGE[self._kv_dtype])

    def kv_cache_spec(self, layer: int) -> KVCacheSpec:
        spec, block_size = self._spec.layers[layer], self._spec.block_size
        encoding = f"paged-cpu:{self._kv_dtype}"
        if spec.shares is not None:
            return KVCacheSpec("shared", block_size, 0, encoding, shares=spec.shares)
        columns = -(-spec.head_size_v // LANES) * LANES
        elements = block_size * spec.num_kv_heads * (spec.head_size + columns)
        block_bytes = elements * np.dtype(_STORAGE[self._kv_dtype]).itemsize
        if spec.window is None:
            return KVCacheSpec("full", block_size, block_bytes, encoding)
        return KVCacheSpec("sliding", block_size, block_bytes, encoding, window=spec.window)

    def bind(self, memory: KVMemory) -> None:
        for layer, spec in enumerate(self._spec.layers):
            if spec.shares is not None:
                self._caches.append(self._caches[spec.shares])
                self._groups.append(self._groups[spec.shares])
            else:
                self._caches.append(memory.layer(layer).numpy().view(_STORAGE[self._kv_dtype]))
                self._groups.append(memory.group(layer))

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> PagedCpuPlan:
        return PagedCpuPlan()

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        assert isinstance(plan, PagedCpuPlan)
        layer = inputs.layer
        spec, cache, group = self._spec.layers[layer], self._caches[layer], self._groups[layer]
        if inputs.k is not None and inputs.v is not None:
            kernels.store_kv(
                self._array(inputs.k),
                self._array(inputs.v),
                plan.slots[group],
                cache,
                self._spec.block_size,
                spec.num_kv_heads,
                spec.head_size,
                spec.head_size_v,
            )
        rows = whole_rows(out)
        plan.counter[0] = 0
        args = (
            self._array(inputs.q),
            self._array(rows),
            cache,
            plan.block_tables[group],
            plan.query_start,
            plan.seq_lens,
            plan.tiles,
            plan.num_tiles,
            plan.counter,
            *self._tails[layer],
        )
        if plan.work * spec.num_heads < ALONE_BELOW:
            kernels.attend(*args)
        else:
            self._team.run(kernels.attend, args)
        write_back(rows, out)

    def _array(self, tensor: Tensor) -> Any:
        """[tokens, heads, size] as the kernels see it: rows at any stride, halves by their bits."""
        rows = whole_rows(tensor)
        return (rows.view(self._as_bits) if self._as_bits else rows).numpy()


def _constants(spec: AttentionSpec, block_size: int) -> tuple[Any, ...]:
    """What :func:`kernels.attend` is told of a layer, in its order."""
    return (
        block_size,
        spec.num_kv_heads,
        spec.num_heads // spec.num_kv_heads,
        spec.head_size,
        spec.head_size_v,
        spec.window or 0,
        np.float32(spec.scale),
        np.float32(spec.soft_cap or 0),
    )


def _compile(activations: Any, storage: Any) -> None:
    """Make the kernels for these dtypes now rather than in the first step."""
    act, kv = (numba.from_dtype(np.dtype(dtype)) for dtype in (activations, storage))
    heads, cache = numba.types.Array(act, 3, "A"), numba.types.Array(kv, 2, "A")
    vector, matrix = numba.types.Array(numba.int32, 1, "A"), numba.types.Array(numba.int32, 2, "A")
    counter, integer, real = numba.types.Array(numba.int64, 1, "C"), numba.int64, numba.float32
    compile_for(kernels.store_kv, (heads, heads, vector, cache, *[integer] * 4))
    layout = (matrix, vector, vector, matrix, integer, counter)
    compile_for(kernels.attend, (heads, heads, cache, *layout, *[integer] * 6, real, real))
