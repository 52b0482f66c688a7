"""Attention backends: who writes K and V into blocks and attends over them.

Lifetime: ``refuses(spec)`` -> ``factory(spec, options)`` -> ``kv_cache_spec(layer)`` for every layer ->
``bind(memory)`` once -> ``make_plan(...)`` (persistent buffers) -> each step ``plan.update(layout)`` on
the host, then ``attend`` once a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from llmkit.kv import KVCacheSpec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    IntArray = np.ndarray[Any, np.dtype[np.int32]]

GraphSupport = Literal["none", "decode", "uniform", "mixed"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention. Since 0.1."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    """Of queries and keys."""
    head_size_v: int
    scale: float
    """Multiplies q.k before the soft cap."""
    mask: Literal["causal", "bidirectional"] = "causal"
    window: int | None = None
    """A token sees itself and the ``window - 1`` tokens before it, and under a bidirectional mask as many
    behind it; None sees all."""
    soft_cap: float | None = None
    """``cap * tanh(score / cap)`` before the mask."""
    shares: int | None = None
    """Reads the KV of this earlier layer and stores none."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """All a backend is told when it is chosen and made."""

    layers: tuple[AttentionSpec, ...]
    dtype: str
    """Of q, k, v and out: ``float32``, ``bfloat16`` or ``float16``."""
    kv_cache_dtype: str
    """``auto`` (the same as dtype) or a name the backend knows."""
    block_size: int
    device: str
    """``cpu`` or ``cuda``."""
    deterministic: bool
    """Only a row-invariant backend may be used."""
    num_threads: int = 1


@dataclass(slots=True)
class BatchLayout:
    """The rows of one step, host side; arrays are views of buffers that the next step overwrites.

    Rows with ``query length <= 1 + k`` (k draft tokens) come first. Padded rows have length 0 and
    padded tokens slot -1. Since 0.1.
    """

    num_rows: int
    num_tokens: int
    query_start: IntArray
    """[rows + 1]; row r's queries are tokens ``query_start[r]`` to ``query_start[r + 1]``."""
    seq_lens: IntArray
    """[rows]; tokens in the cache once this step's are written."""
    block_tables: tuple[IntArray, ...]
    """A group each: [rows, max_blocks] block ids, NULL_BLOCK where nothing is or was freed."""
    slot_mapping: tuple[IntArray, ...]
    """A group each: [tokens] ``block * block_size + offset`` to write to, PAD_SLOT for none."""
    num_decode_rows: int
    """Rows at the front whose query length is at most 1 + k."""
    max_query_len: int
    max_seq_len: int


class KVMemory(Protocol):
    """The worker's pool; it owns the bytes. Keep views, never resize. Since 0.1."""

    num_blocks: int

    def layer(self, index: int) -> Tensor:
        """uint8 ``[num_blocks, block_bytes]`` of this layer, rows strided by the page, zeroed."""

    def group(self, index: int) -> int:
        """Which group's block table and slot mapping belong to this layer."""


@dataclass(slots=True)
class LayerInputs:
    """What a layer hands to attention; the token dimension may be padded behind ``num_tokens``.

    Strides may be any, also those of ``out``: tensors may be views of a fused product, or transposed.
    """

    layer: int
    q: Tensor
    """[tokens, num_heads, head_size]"""
    k: Tensor | None
    """[tokens, num_kv_heads, head_size]; None where ``AttentionSpec.shares`` is set."""
    v: Tensor | None
    """[tokens, num_kv_heads, head_size_v]"""


class AttentionPlan(Protocol):
    """A backend's persistent buffers for one step after another. Since 0.1."""

    def update(self, layout: BatchLayout) -> None:
        """Take the next step's layout in place; runs on the host, before the forward."""


class AttentionBackend(Protocol):
    """Writes this step's K and V, then attends. Owns its plan's buffers, not the pool. Since 0.1."""

    row_invariant: bool
    """A row's result is bit-equal for every batch, chunking and neighbour."""
    graph_support: GraphSupport
    fused_rope: bool

    def kv_cache_spec(self, layer: int) -> KVCacheSpec:
        """What the layer stores; ``shared`` and ``none`` layers have block_bytes 0."""

    def bind(self, memory: KVMemory) -> None:
        """Make views of every layer's bytes; called once, after the pool is allocated."""

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> AttentionPlan:
        """Buffers for steps of up to so many tokens, rows and blocks a row."""

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        """Write ``out`` [tokens, num_heads, head_size_v]. Reads only plan buffers and never syncs.

        A layer whose spec is ``none`` has no cache: it attends within each row's queries.
        """


BackendFactory = Callable[[BackendSpec, Any], AttentionBackend]


class RegisterAttention(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: BackendFactory,
        *,
        refuses: Callable[[BackendSpec], str | None],
        priority: int = 0,
    ) -> None:
        """``refuses`` says in one clause why it cannot serve this, or None. ``auto`` takes the
        highest ``priority`` (its own claim of speed) among those that do not refuse."""


__all__ = [
    "AttentionBackend",
    "AttentionPlan",
    "AttentionSpec",
    "BackendFactory",
    "BackendSpec",
    "BatchLayout",
    "GraphSupport",
    "KVMemory",
    "LayerInputs",
    "RegisterAttention",
]
