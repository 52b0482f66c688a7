"""Drives an attention backend through steps as a worker does, over a pool that distrusts it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmkit.contracts import (
    NULL_BLOCK,
    PAD_SLOT,
    AttentionBackend,
    AttentionSpec,
    BackendSpec,
    BatchLayout,
    KVCacheSpec,
    LayerInputs,
)

POISON = 0xFF
"""What a block holds before it is written: NaN in every float format, -1 in every integer."""


@dataclass(frozen=True)
class Schedule:
    """How many tokens each sequence has, and which of them are computed in which step."""

    lengths: tuple[int, ...]
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """Steps of (sequence, number of its next tokens)."""


class Pool:
    """``KVMemory`` of every byte ``fill``; rows are further apart than a block is long."""

    def __init__(
        self, specs: Sequence[KVCacheSpec], num_blocks: int, device: str, *, fill: int = POISON
    ) -> None:
        self.num_blocks = num_blocks
        self.groups: list[KVCacheSpec] = []
        self._places: dict[int, tuple[int, int]] = {}
        """Layer -> (group, slot)."""
        members: list[int] = []
        for layer, spec in enumerate(specs):
            if spec.kind in ("shared", "none"):
                continue
            if spec not in self.groups:
                self.groups.append(spec)
                members.append(0)
            group = self.groups.index(spec)
            self._places[layer] = (group, members[group])
            members[group] += 1
        for layer, spec in enumerate(specs):
            if spec.shares is not None:
                self._places[layer] = self._places[spec.shares]
        page_bytes = max((spec.block_bytes for spec in self.groups), default=0) + 64
        slots = max(members, default=0)
        shape = (num_blocks + 2, page_bytes)
        self.guarded = [torch.full(shape, fill, dtype=torch.uint8, device=device) for _ in range(slots)]
        """Each slot with a block before and a block behind that nobody may write."""
        self.slots = [storage[1:-1] for storage in self.guarded]

    def layer(self, index: int) -> Tensor:
        group, slot = self._places[index]
        return self.slots[slot][:, : self.groups[group].block_bytes]

    def group(self, index: int) -> int:
        return self._places[index][0]


@dataclass
class TestSequence:
    """One sequence's activations and results by layer, and its block tables by group."""

    __test__ = False

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    results: list[Tensor]
    tables: list[list[int]]
    computed: int = 0


class Driver:
    """Owns pool, block tables and plan. ``sequences[i].results[layer]`` fills as steps run.

    Each step asserts that no byte outside the blocks of its slot mapping changed.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        spec: BackendSpec,
        lengths: Sequence[int],
        seed: int,
        *,
        arrangement: str = "contiguous",
    ) -> None:
        """:param arrangement: how q, k, v and out lie in memory; one of ``ARRANGEMENTS``."""
        self.spec = spec
        self._backend = backend
        self._arrange = ARRANGEMENTS[arrangement]
        block_size = spec.block_size
        specs = [backend.kv_cache_spec(layer) for layer in range(len(spec.layers))]
        self._max_blocks = -(-max(lengths) // block_size)
        needed = sum(-(-length // block_size) for length in lengths) * len(spec.layers)
        self.pool = Pool(specs, 2 * needed + 2, spec.device)
        self._free = list(range(1, self.pool.num_blocks))
        random.Random(seed).shuffle(self._free)
        backend.bind(self.pool)
        self._plan = backend.make_plan(sum(lengths) + 16, len(lengths) + 4, self._max_blocks)
        self.sequences = [self._sequence(length, seed * 1000 + index) for index, length in enumerate(lengths)]

    @property
    def results(self) -> list[list[Tensor]]:
        return [sequence.results for sequence in self.sequences]

    def step(self, rows: Sequence[tuple[int, int]], *, padded_rows: int = 0, padded_tokens: int = 0) -> None:
        """Compute the next tokens of some sequences, given as (sequence, number of tokens)."""
        rows = sorted(rows, key=lambda row: row[1] > 1)  # those that decode come first
        for index, count in rows:
            self._allocate(self.sequences[index], count)
        layout = self._layout(rows, padded_rows, padded_tokens)
        before = [storage.clone() for storage in self.pool.guarded]
        self._plan.update(layout)
        for layer, spec in enumerate(self.spec.layers):
            self._attend(layer, spec, rows, layout.num_tokens)
        self._check_untouched(before, layout)
        for index, count in rows:
            self.sequences[index].computed += count
            self._free_behind_window(self.sequences[index])

    def move_blocks(self) -> None:
        """Copy every block in use to another id, as bytes, and poison the old one."""
        for sequence in self.sequences:
            for table in sequence.tables:
                for place, block in enumerate(table):
                    if block == NULL_BLOCK:
                        continue
                    table[place] = self._free.pop()
                    for slot in self.pool.slots:
                        slot[table[place]] = slot[block]
                    self._release(block)

    # ---- a step's parts ----

    def _sequence(self, length: int, seed: int) -> TestSequence:
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, self.spec.dtype)

        def tensors(width: str, heads: str, scale: float) -> list[Tensor]:
            return [
                (torch.randn(length, getattr(spec, heads), getattr(spec, width), generator=generator) * scale)
                .to(dtype)
                .to(self.spec.device)
                for spec in self.spec.layers
            ]

        results = [
            torch.full((length, spec.num_heads, spec.head_size_v), torch.nan, dtype=dtype)
            for spec in self.spec.layers
        ]
        tables: list[list[int]] = [[] for _ in self.pool.groups]
        q = tensors("head_size", "num_heads", 2.0)
        k, v = tensors("head_size", "num_kv_heads", 1.0), tensors("head_size_v", "num_kv_heads", 1.0)
        return TestSequence(q, k, v, results, tables)

    def _allocate(self, sequence: TestSequence, count: int) -> None:
        blocks = -(-(sequence.computed + count) // self.spec.block_size)
        for table in sequence.tables:
            while len(table) < blocks:
                table.append(self._free.pop())

    def _layout(self, rows: Sequence[tuple[int, int]], padded_rows: int, padded_tokens: int) -> BatchLayout:
        counts = [count for _, count in rows] + [0] * padded_rows
        num_rows, num_tokens = len(counts), sum(counts) + padded_tokens
        layout = BatchLayout(
            num_rows=num_rows,
            num_tokens=num_tokens,
            query_start=int32(num_rows + 1),
            seq_lens=int32(num_rows),
            block_tables=tuple(int32(num_rows, self._max_blocks) for _ in self.pool.groups),
            slot_mapping=tuple(np.full(num_tokens, PAD_SLOT, np.int32) for _ in self.pool.groups),
            num_decode_rows=sum(count <= 1 for count in counts[: len(rows)]),
            max_query_len=max(counts, default=0),
            max_seq_len=0,
        )
        layout.query_start[1:] = np.cumsum(counts)
        for row, (index, count) in enumerate(rows):
            sequence = self.sequences[index]
            layout.seq_lens[row] = sequence.computed + count
            positions = np.arange(sequence.computed, sequence.computed + count)
            for group, table in enumerate(sequence.tables):
                layout.block_tables[group][row, : len(table)] = table
                blocks = layout.block_tables[group][row, positions // self.spec.block_size]
                start = layout.query_start[row]
                slots = blocks * self.spec.block_size + positions % self.spec.block_size
                layout.slot_mapping[group][start : start + count] = slots
        layout.max_seq_len = int(layout.seq_lens.max(initial=0))
        return layout

    def _attend(self, layer: int, spec: AttentionSpec, rows: Sequence[tuple[int, int]], tokens: int) -> None:
        def packed(source: list[list[Tensor]]) -> Tensor:
            parts = []
            for index, count in rows:
                start = self.sequences[index].computed
                parts.append(source[index][layer][start : start + count])
            real = torch.cat(parts)
            padding = real.new_full((tokens - len(real), *real.shape[1:]), torch.nan)
            return torch.cat((real, padding))

        q = packed([sequence.q for sequence in self.sequences])
        k = packed([sequence.k for sequence in self.sequences])
        v = packed([sequence.v for sequence in self.sequences])
        q, k, v = self._arrange(q, k, v)
        shared = spec.shares is not None
        shape = (tokens, spec.num_heads, spec.head_size_v)
        (out,) = self._arrange(torch.full(shape, torch.nan, dtype=q.dtype, device=q.device))
        inputs = LayerInputs(layer, q, None if shared else k, None if shared else v)
        self._backend.attend(inputs, self._plan, out)
        start = 0
        for index, count in rows:
            sequence = self.sequences[index]
            place = slice(sequence.computed, sequence.computed + count)
            sequence.results[layer][place] = out[start : start + count].cpu()
            start += count

    def _check_untouched(self, before: Sequence[Tensor], layout: BatchLayout) -> None:
        untouched = torch.ones(self.pool.num_blocks + 2, dtype=torch.bool)
        for slots in layout.slot_mapping:
            untouched[slots[slots >= 0] // self.spec.block_size + 1] = False
        for old, new in zip(before, self.pool.guarded, strict=True):
            assert torch.equal(old[untouched], new[untouched]), "a block outside the slot mapping was written"

    def _free_behind_window(self, sequence: TestSequence) -> None:
        for spec, table in zip(self.pool.groups, sequence.tables, strict=True):
            if spec.window is None:
                continue
            behind = max(0, sequence.computed - spec.window + 1) // self.spec.block_size
            for place, block in enumerate(table[:behind]):
                if block != NULL_BLOCK:
                    table[place] = NULL_BLOCK
                    self._release(block)

    def _release(self, block: int) -> None:
        for slot in self.pool.slots:
            slot[block] = POISON
        self._free.insert(0, block)


def int32(*shape: int) -> Any:
    return np.zeros(shape, np.int32)


# ---- where the same values may lie in memory ----


def _as_they_are(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors


def _columns_of_one(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Columns of one [tokens, columns] tensor: views of a fused product."""
    together = torch.cat([tensor.flatten(1) for tensor in tensors], dim=1)
    widths = [tensor.shape[1] * tensor.shape[2] for tensor in tensors]
    columns = torch.split(together, widths, dim=1)
    return tuple(part.view(tensor.shape) for part, tensor in zip(columns, tensors, strict=True))


def _heads_outermost(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Transposed views of [heads, tokens, size], as transformers has them."""
    return tuple(tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in tensors)


def _every_other_element(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.stack((tensor, torch.full_like(tensor, torch.nan)), -1)[..., 0] for tensor in tensors)


def _odd_strides_of_ones(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Dimensions of one element have strides that mean nothing; ``contiguous()`` keeps them."""
    return tuple(
        tensor.as_strided(
            tensor.shape,
            [
                stride if size != 1 else 4321
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ],
        )
        for tensor in tensors
    )


ARRANGEMENTS: Mapping[str, Callable[..., tuple[Tensor, ...]]] = {
    "contiguous": _as_they_are,
    "columns of one product": _columns_of_one,
    "heads outermost": _heads_outermost,
    "every other element": _every_other_element,
    "odd strides of ones": _odd_strides_of_ones,
}
