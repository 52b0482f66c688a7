"""The pool of KV blocks: one byte tensor a slot, whose pages the OS gives when they are first written."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmkit.errors import OutOfMemory, StartupError
from llmkit.kv import KVCacheSpec, KVLayout


class BlockMemory:
    """Owns the bytes of every layer's KV; ``llmkit.contracts.KVMemory`` of this worker.

    :raises OutOfMemory: the machine does not give that much.
    """

    def __init__(self, layout: KVLayout, layers: Sequence[KVCacheSpec], device: torch.device) -> None:
        self.num_blocks = layout.num_blocks
        self._places = _places(layout, layers)
        shape = (layout.num_blocks, layout.page_bytes)
        self._maps: list[mmap.mmap] = []
        try:
            self._slots = tuple(self._zeros(shape, device) for _ in range(layout.num_slots))
        except (OSError, RuntimeError) as failure:
            raise OutOfMemory(
                f"the KV cache of {layout.total_bytes / 2**30:.2f} GiB cannot be allocated ({failure}); "
                "set --kv-cache-memory-bytes lower"
            ) from failure

    @property
    def slots(self) -> tuple[Tensor, ...]:
        """uint8 ``[num_blocks, page_bytes]`` each; what a KV connector moves."""
        return self._slots

    def layer(self, index: int) -> Tensor:
        """uint8 ``[num_blocks, block_bytes]`` of a layer; a shared layer gives its source's.

        :raises KeyError: the layer stores nothing.
        """
        place = self._places[index]
        return self._slots[place.slot][:, : place.block_bytes]

    def group(self, index: int) -> int:
        """Which block table and slot mapping belong to a layer.

        :raises KeyError: the layer stores nothing.
        """
        return self._places[index].group

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks in every slot; all sources are read before any destination is written."""
        if not copies:
            return
        pairs = torch.tensor(copies, device=self._slots[0].device if self._slots else None)
        for slot in self._slots:
            slot[pairs[:, 1]] = slot[pairs[:, 0]]

    def give_back(self) -> None:
        """Return every page to the machine: blocks read as zeros, and are taken again when written to."""
        for pages in self._maps:
            pages.madvise(mmap.MADV_DONTNEED)

    def _zeros(self, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Zeros that cost no memory until written; page-aligned on a CPU."""
        if device.type != "cpu":
            return torch.zeros(shape, dtype=torch.uint8, device=device)
        pages = mmap.mmap(-1, shape[0] * shape[1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._maps.append(pages)
        return torch.frombuffer(pages, dtype=torch.uint8).view(shape)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a layer's blocks are."""

    group: int
    slot: int
    block_bytes: int


def _places(layout: KVLayout, layers: Sequence[KVCacheSpec]) -> dict[int, _Place]:
    places = {
        layer: _Place(number, slot, group.spec.block_bytes)
        for number, group in enumerate(layout.groups)
        for slot, layer in enumerate(group.layers)
    }
    for index, spec in enumerate(layers):
        if spec.shares is not None:
            places[index] = places[spec.shares]
        elif spec.kind != "none" and index not in places:
            raise StartupError(f"attention layer {index} ({spec.kind}) is in no group of the KV layout")
    return places
