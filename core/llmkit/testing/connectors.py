"""The compliance suite of KV connectors: contents come back as they were, or not at all."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from llmkit.config import CacheConfig, Config
from llmkit.contracts import (
    KVCacheSpec,
    KVConnector,
    KVConnectorSpec,
    KVDirectory,
    KVGroup,
    KVLayout,
    KVLoad,
    KVMover,
)

NUM_BLOCKS, NUM_SLOTS, PAGE_BYTES = 24, 3, 40
BLOCKS_KEPT = 8
"""What the suite's ``--kv-offload-bytes`` hold."""


class KVConnectorContract:
    """What every connector must hold to. Its two sides meet here through the packed plans alone."""

    def make_connector(self, spec: KVConnectorSpec) -> KVConnector:
        """A fresh connector, the way its factory makes it."""
        raise NotImplementedError

    def start(self) -> Ends:
        return Ends(self.make_connector(spec()), self.make_connector(spec()))

    def test_what_was_evicted_comes_back_bit_for_bit(self) -> None:
        ends = self.start()
        ends.fill(1, b"one")
        ends.fill(2, b"two")
        assert ends.step(evicted=[(b"one", 1), (b"two", 2)]) == []
        ends.fill(1, b"other")
        assert ends.directory.matched([b"one", b"nobody", b"two"]) == [True, False, True]
        assert ends.step(loads=[KVLoad("a", [(b"two", 7), (b"one", 9)])]) == []
        ends.expect(7, b"two")
        ends.expect(9, b"one")
        ends.expect(1, b"other")
        ends.close()

    def test_a_block_is_read_before_it_is_filled(self) -> None:
        """One block is evicted and loaded into in the same step."""
        ends = self.start()
        ends.fill(1, b"old")
        ends.step(evicted=[(b"old", 1)])
        ends.fill(2, b"new")
        ends.step(loads=[KVLoad("a", [(b"old", 2)])], evicted=[(b"new", 2)])
        ends.expect(2, b"old")
        assert ends.directory.matched([b"new"]) == [True]
        ends.step(loads=[KVLoad("b", [(b"new", 3)])])
        ends.expect(3, b"new")
        ends.close()

    def test_what_was_matched_outlives_what_is_evicted_with_it(self) -> None:
        ends = self.start()
        for block in range(1, BLOCKS_KEPT + 1):
            ends.fill(block, b"%d" % block)
        ends.step(evicted=[(b"%d" % block, block) for block in range(1, BLOCKS_KEPT + 1)])
        kept = [b"%d" % n for n in range(1, BLOCKS_KEPT + 1) if ends.directory.matched([b"%d" % n])[0]]
        for block in range(1, NUM_BLOCKS - BLOCKS_KEPT):
            ends.fill(block, b"new %d" % block)
        evicted = [(b"new %d" % block, block) for block in range(1, NUM_BLOCKS - BLOCKS_KEPT)]
        loads = [(key, NUM_BLOCKS - 1 - index) for index, key in enumerate(kept)]
        assert ends.step(loads=[KVLoad("a", loads)], evicted=evicted) == []
        for key, block in loads:
            ends.expect(block, key)
        ends.close()

    def test_what_failed_or_was_reset_is_not_matched_again(self) -> None:
        ends = self.start()
        keys = [b"one", b"two", b"three"]
        for block, key in enumerate(keys, start=1):
            ends.fill(block, key)
        ends.step(evicted=[(key, block) for block, key in enumerate(keys, start=1)])
        ends.directory.failed([b"two", b"never seen"])
        assert ends.directory.matched(keys) == [True, False, True]
        ends.directory.reset()
        assert ends.directory.matched(keys) == [False] * 3
        ends.step(evicted=[(b"two", 2)])
        assert ends.step(loads=[KVLoad("a", [(b"two", 9)])]) == []
        ends.expect(9, b"two")
        ends.close()

    def test_a_worker_that_lost_the_bytes_says_so_and_fills_nothing_wrongly(self) -> None:
        """As after a restart, or where one rank has less than another."""
        ends = self.start()
        ends.fill(1, b"one")
        ends.directory.plan([], [(b"one", 1)])  # the mover never hears of it
        ends.fill(4, b"mine")
        if ends.directory.matched([b"one"])[0]:
            assert ends.step(loads=[KVLoad("a", [(b"one", 4)])]) == ["a"]
        ends.close()

    def test_nothing_to_do_is_an_empty_plan(self) -> None:
        ends = self.start()
        assert ends.directory.plan([], []) == b""
        ends.close()

    def test_any_order_of_evictions_and_loads_keeps_contents(self) -> None:
        source = random.Random(0)
        ends, loaded = self.start(), 0
        for step in range(200):
            blocks = source.sample(range(1, NUM_BLOCKS), 6)
            evicted = []
            for block in blocks[: source.randrange(5)]:
                key = b"%d" % source.randrange(20)
                ends.fill(block, key)
                evicted.append((key, block))
            evicted = list({key: (key, block) for key, block in evicted}.values())
            wanted = [b"%d" % source.randrange(20) for _ in range(2)]
            found = [key for key, there in zip(wanted, ends.directory.matched(wanted), strict=True) if there]
            places = list(zip(found, blocks[4:], strict=False))
            loads = [KVLoad(f"{step}-{index}", [pair]) for index, pair in enumerate(places)]
            assert ends.step(loads=loads, evicted=evicted) == []
            for key, block in places:
                ends.expect(block, key)
            loaded += len(places)
            if source.random() < 0.1:
                ends.directory.failed([b"%d" % source.randrange(20)])
        assert loaded > 20
        ends.close()

    def test_closing_twice_is_closing_once(self) -> None:
        ends = self.start()
        ends.close()
        ends.close()


class Ends:
    """Both sides of a connector over a small pool of blocks; each of the two connectors gives one."""

    def __init__(self, engine: KVConnector, worker: KVConnector) -> None:
        self.slots = [torch.zeros((NUM_BLOCKS, PAGE_BYTES), dtype=torch.uint8) for _ in range(NUM_SLOTS)]
        self.directory: KVDirectory = engine.directory()
        self.mover: KVMover = worker.mover(self)

    def step(
        self, *, loads: Sequence[KVLoad] = (), evicted: Sequence[tuple[bytes, int]] = ()
    ) -> Sequence[str]:
        """What could not be loaded."""
        transfers = self.directory.plan(loads, evicted)
        return list(self.mover.apply(transfers)) if transfers else []

    def fill(self, block: int, key: bytes) -> None:
        for number, slot in enumerate(self.slots):
            slot[block] = contents(key, number)

    def expect(self, block: int, key: bytes) -> None:
        for number, slot in enumerate(self.slots):
            assert torch.equal(slot[block], contents(key, number)), f"block {block} is not {key!r}"

    def close(self) -> None:
        self.mover.close()


def contents(key: bytes, slot: int) -> Tensor:
    """The bytes a key stands for, in one slot."""
    source = random.Random(key + bytes([slot]))
    return torch.tensor(list(source.randbytes(PAGE_BYTES)), dtype=torch.uint8)


def spec(offload_bytes: int = BLOCKS_KEPT * NUM_SLOTS * PAGE_BYTES) -> KVConnectorSpec:
    group = KVGroup(KVCacheSpec("full", 4, PAGE_BYTES, "bytes"), tuple(range(NUM_SLOTS)))
    cache = CacheConfig(kv_connector="tested", kv_offload_bytes=offload_bytes)
    return KVConnectorSpec(Config(cache=cache), KVLayout((group,), NUM_BLOCKS, NUM_SLOTS, PAGE_BYTES))


__all__ = ["BLOCKS_KEPT", "Ends", "KVConnectorContract", "contents", "spec"]
