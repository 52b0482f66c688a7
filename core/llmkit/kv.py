"""The KV cache as groups of layers over one pool of blocks.

A block holds ``block_size`` tokens. Physically, the pool is ``num_slots`` byte tensors of shape
``[num_blocks, page_bytes]``: slot ``s`` holds the KV of the s-th layer of every group, so one block id
names one contiguous byte range in each slot, and any group may use any block id. The core copies,
spills and sends blocks as these bytes; only the attention backend knows what they mean.
"""

from __future__ import annotations

from typing import Literal

import msgspec

KVKind = Literal["full", "sliding", "state", "cross", "shared", "none"]
NULL_BLOCK = 0
"""Never handed out: stands in block tables where a sliding group has freed a block, and in padding."""
PAD_SLOT = -1
"""In a slot mapping: this token's K and V are not written."""


class KVCacheSpec(msgspec.Struct, frozen=True):
    """What one layer stores per block, as its attention backend says.

    Layers whose specs are equal share block tables. Since 0.1; ``state`` and ``cross`` are reserved.
    """

    kind: KVKind
    block_size: int
    """Tokens a block."""
    block_bytes: int
    """Bytes of one block of one layer, all that the backend keeps for it (scales included)."""
    encoding: str
    """Names layout and dtype; part of the root of every prefix-cache key."""
    window: int | None = None
    """``sliding``: a token sees itself and the ``window - 1`` tokens before it."""
    shares: int | None = None
    """``shared``: the layer whose blocks this one reads."""


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share a block table. ``layers[s]`` lives in slot ``s``."""

    spec: KVCacheSpec
    layers: tuple[int, ...]


class KVLayout(msgspec.Struct, frozen=True):
    """How the pool is cut; decided by the engine, the same on every rank."""

    groups: tuple[KVGroup, ...]
    num_blocks: int
    """Block ids run from 0 (the null block) to ``num_blocks - 1``."""
    num_slots: int
    page_bytes: int
    """Stride of a block within a slot: the largest ``block_bytes`` of any group."""

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.num_slots * self.page_bytes
