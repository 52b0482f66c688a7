"""KV blocks in host memory: evicted ones are copied there, and back when a prompt needs them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from llmkit.contracts import KVBytes, KVLoad

if TYPE_CHECKING:
    from llmkit_kv_offload.host_memory import HostMemory


class Save(msgspec.Struct, frozen=True, array_like=True):
    """Copy a block of the pool to a place in host memory."""

    block: int
    place: int
    key: bytes


class Load(msgspec.Struct, frozen=True, array_like=True):
    """Fill blocks of one request from places in host memory."""

    request_id: str
    blocks: list[int]
    places: list[int]
    keys: list[bytes]


class Transfers(msgspec.Struct, frozen=True, array_like=True):
    """One step's; saves come before loads, and none goes to a place that a load of the step reads."""

    saves: list[Save]
    loads: list[Load]


class Offload:
    """Both sides of the connector. ``num_places`` blocks fit the host memory of each worker."""

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places

    def directory(self) -> HostDirectory:
        return HostDirectory(self._num_places)

    def mover(self, memory: KVBytes) -> HostMemory:
        from llmkit_kv_offload.host_memory import HostMemory

        return HostMemory(memory, self._num_places)


class HostDirectory:
    """Owns the table of keys and places; the least recently used key makes room for a new one."""

    def __init__(self, num_places: int) -> None:
        self._place_of: OrderedDict[bytes, int] = OrderedDict()
        self._unused = list(range(num_places))
        self._num_places = num_places

    def matched(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self._place_of for key in keys]

    def plan(self, loads: Sequence[KVLoad], evicted: Sequence[tuple[bytes, int]]) -> bytes:
        """Packed :class:`Transfers`. Blocks are kept as long as this step's own leave places for them."""
        taken: set[int] = set()
        planned = [self._load(load, taken) for load in loads]
        saves = []
        # What is evicted last was used last: where not all can be kept, the first are let go.
        for key, block in evicted[-self._num_places :]:
            if key in self._place_of:
                self._place_of.move_to_end(key)
                continue
            place = self._make_room(taken)
            if place is None:
                break
            taken.add(place)
            self._place_of[key] = place
            saves.append(Save(block, place, key))
        if not saves and not planned:
            return b""
        return msgspec.msgpack.encode(Transfers(saves, planned))

    def failed(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            place = self._place_of.pop(key, None)
            if place is not None:
                self._unused.append(place)

    def reset(self) -> None:
        self.failed(list(self._place_of))

    def _load(self, load: KVLoad, taken: set[int]) -> Load:
        places = [self._place_of[key] for key, _ in load.blocks]
        taken.update(places)
        for key, _ in load.blocks:
            self._place_of.move_to_end(key)
        return Load(
            load.request_id, [block for _, block in load.blocks], places, [key for key, _ in load.blocks]
        )

    def _make_room(self, taken: set[int]) -> int | None:
        """A place that this step does not use; None when it uses them all."""
        if self._unused:
            return self._unused.pop()
        # This step's are the last in the order: if the first is one of them, all are.
        key, place = next(iter(self._place_of.items()))
        if place in taken:
            return None
        del self._place_of[key]
        return place
