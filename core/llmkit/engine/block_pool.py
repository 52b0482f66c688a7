"""The pool of KV blocks: who holds which, which are free, and which still hold a known prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from llmkit.kv import NULL_BLOCK


class KVBlockPool:
    """Owns every block's reference count, its key and the list of free ones. O(1) per block.

    A block is *held* while its count is above 0 and free otherwise. A free block may be *cached*: its
    contents are still known by a key, and a prefix that needs them takes it back. Free blocks are
    handed out least recently used first, those without contents before any cached one.
    """

    def __init__(self, num_blocks: int, *, tell_evicted: bool = False) -> None:
        """``tell_evicted``: remember for :meth:`take_evicted` what is evicted."""
        self.num_blocks = num_blocks
        self._tell_evicted = tell_evicted
        self._evicted: list[tuple[bytes, int]] = []
        self._refs = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that :meth:`allocate` can give, cached ones included."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_blocks - 1 - len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents are known."""
        return sum(self._keys[block] is not None for block in self._free)

    def allocate(self, count: int) -> list[int]:
        """Take blocks with nothing of use in them; the caller has asked ``num_free``."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            key = self._forget(block)
            if self._tell_evicted and key is not None:
                self._evicted.append((key, block))
            self._refs[block] = 1
        return blocks

    def take_evicted(self) -> list[tuple[bytes, int]]:
        """Key and block of every cached block allocated since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def find(self, key: bytes) -> int | None:
        """The block that holds these contents, held or free."""
        return self._block_of.get(key)

    def refs(self, block: int) -> int:
        """How many requests hold it."""
        return self._refs[block]

    def hold(self, block: int) -> None:
        """One more request reads this block, which must be cached or held."""
        if self._refs[block] == 0:
            assert self._keys[block] is not None, f"block {block} is free and has no contents"
            del self._free[block]
        self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference each, in this order: the first becomes the first to be reused."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            assert self._refs[block] > 0, f"block {block} is released but nobody holds it"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if self._keys[block] is None:
                    self._free.move_to_end(block, last=False)

    def cache(self, block: int, key: bytes) -> None:
        """Make a full block's contents known; where another block has the same, that one stays known."""
        assert self._refs[block] > 0, f"block {block} is free; only its holder knows its contents"
        if self._keys[block] is None and key not in self._block_of:
            self._keys[block] = key
            self._block_of[key] = block

    def reset(self) -> bool:
        """Forget the contents of every free block; True if no block was held."""
        for block in self._free:
            self._forget(block)
        return self.num_held == 0

    def check(self) -> None:
        """:raises AssertionError: with what is wrong in the books."""
        for block in range(1, self.num_blocks):
            assert self._refs[block] >= 0, f"block {block} has count {self._refs[block]}"
            assert (self._refs[block] == 0) == (block in self._free), f"block {block} is free and held"
        assert self._refs[NULL_BLOCK] == 0, "the null block is held"
        assert NULL_BLOCK not in self._free, "the null block is free"
        known = {key: block for block, key in enumerate(self._keys) if key is not None}
        assert known == self._block_of, "keys and blocks disagree"

    def _forget(self, block: int) -> bytes | None:
        """The key it had."""
        key = self._keys[block]
        if key is not None:
            self._keys[block] = None
            del self._block_of[key]
        return key
