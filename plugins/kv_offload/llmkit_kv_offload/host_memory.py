"""The worker's side: host memory for blocks, with a checksum each."""

from __future__ import annotations

import msgspec
import torch
from blake3 import blake3

from llmkit import OutOfMemory
from llmkit.contracts import KVBytes
from llmkit_kv_offload.offload import Load, Save, Transfers

_decode = msgspec.msgpack.Decoder(Transfers).decode


class HostMemory:
    """Owns the places: for each, the bytes of one block in every slot, and what they should hash to.

    The hash covers the key too, so a place that holds another block than the engine believes is found
    out like a damaged one. On a CPU the pages are the machine's only once written.

    :raises OutOfMemory: the machine does not give that much.
    """

    def __init__(self, memory: KVBytes, num_places: int) -> None:
        self._slots = memory.slots
        num_slots, page_bytes = len(self._slots), self._slots[0].shape[1]
        self._device = self._slots[0].device
        try:
            self.places: torch.Tensor | None = torch.empty(
                (num_places, num_slots, page_bytes), dtype=torch.uint8, pin_memory=self._device.type == "cuda"
            )
        except RuntimeError as failure:
            raise OutOfMemory(
                f"host memory for {num_places} KV blocks cannot be allocated ({failure}); "
                "set --kv-offload-bytes lower"
            ) from failure
        self._sums: dict[int, bytes] = {}

    def apply(self, transfers: bytes) -> list[str]:
        message = _decode(transfers)
        self._save(message.saves)
        return [load.request_id for load in message.loads if not self._load(load)]

    def close(self) -> None:
        self.places = None
        self._sums.clear()

    def _save(self, saves: list[Save]) -> None:
        places = self._places()
        blocks = torch.tensor([save.block for save in saves], dtype=torch.long, device=self._device)
        to = torch.tensor([save.place for save in saves], dtype=torch.long)
        for index, slot in enumerate(self._slots):
            places[to, index] = slot[blocks].to("cpu")
        for save in saves:
            self._sums[save.place] = self._sum(save.place, save.key)

    def _load(self, load: Load) -> bool:
        """Fill all its blocks, or none where any place is not what it should be."""
        places = self._places()
        for place, key in zip(load.places, load.keys, strict=True):
            if self._sums.get(place) != self._sum(place, key):
                return False
        blocks = torch.tensor(load.blocks, dtype=torch.long, device=self._device)
        origin = torch.tensor(load.places, dtype=torch.long)
        for index, slot in enumerate(self._slots):
            slot[blocks] = places[origin, index].to(self._device)
        return True

    def _sum(self, place: int, key: bytes) -> bytes:
        hasher = blake3(key)
        hasher.update(self._places()[place].numpy().data)
        return hasher.digest()

    def _places(self) -> torch.Tensor:
        assert self.places is not None, "its memory is freed"
        return self.places
