"""Which blocks each request holds in each group: growth, windows, prefix hits, release."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.contracts.connector import KVDirectory
from llmkit.engine.block_pool import KVBlockPool
from llmkit.engine.kv_transfers import KVTransfers
from llmkit.engine.layout import sequence_blocks
from llmkit.engine.prefix import block_key, group_key
from llmkit.engine.request import Request
from llmkit.kv import NULL_BLOCK, KVLayout

LOAD = -1
"""In the tables of a hit: a block that the KV connector has and the pool has not."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the cache has of a request's beginning."""

    num_tokens: int
    """Tokens that need not be computed; at least one always is."""
    tables: list[list[int]]
    """Blocks of each group, NULL_BLOCK where a sliding group needs none, LOAD where the connector has
    it. All of equal length."""
    copy: bool
    """The request will write to the last block, which others read: it gets a copy of it."""
    num_loaded: int = 0
    """Of ``num_tokens``, those in a block that is to be loaded in any group."""


class KVManager:
    """Owns the pool and, through it, the block tables of every request.

    Tables of all groups have the same length: entry ``i`` stands for tokens ``i * block_size`` and on.
    What is asked (:meth:`missing`, :meth:`fitting`, :meth:`find_prefix`, :meth:`fork`) changes nothing;
    what is done (:meth:`start`, :meth:`grow`) may assume that it was asked.
    """

    def __init__(
        self,
        layout: KVLayout,
        block_size: int,
        chunk: int,
        *,
        caching: bool,
        directory: KVDirectory | None = None,
    ) -> None:
        """``directory``: a KV connector's, of which ``caching`` makes use."""
        self.pool = KVBlockPool(layout.num_blocks, tell_evicted=directory is not None)
        self._transfers = KVTransfers(directory)
        self.layout = layout
        self._groups = layout.groups
        self._windows = [group.spec.window for group in layout.groups]
        self._sliding = any(self._windows)
        self._block_size = block_size
        self._chunk = chunk
        self._caching = caching
        self._copy_sources: list[int] = []
        self._nothing: list[list[int]] = [[] for _ in layout.groups]
        self.num_copied = 0
        """Blocks copied because two requests went on from one, since the start."""

    # ---- asked ----

    def missing(self, request: Request, num_tokens: int) -> int:
        """Free blocks that growing to ``num_tokens`` takes, less those behind a window that it gives back."""
        more = self._more_blocks(request, num_tokens)
        if more == 0:
            return 0
        return max(0, more * len(self._groups) - self._num_stale(request))

    def fitting(self, request: Request, num_tokens: int) -> int:
        """How many of the next ``num_tokens`` tokens have a place now."""
        if not self._groups:
            return num_tokens
        blocks = (self.pool.num_free + self._num_stale(request)) // len(self._groups)
        room = request.num_slots + blocks * self._block_size - request.num_computed
        return min(num_tokens, room)

    def outstanding(self, request: Request) -> int:
        """Blocks it may still take until its known tokens and one block more are computed."""
        if not self._sliding:  # asked of every running request: the same, in fewer steps
            tokens = min(request.num_known + self._block_size, request.limit)
            more = -(-(tokens - request.num_slots) // self._block_size)
            return more * len(self._groups) if more > 0 else 0
        return max(0, self._ahead(request) - self.num_held(request))

    def num_held(self, request: Request) -> int:
        return sum(len(table) - gone for table, gone in zip(request.tables, request.freed, strict=True))

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest beginning whose KV is cached, or can be loaded, in every group."""
        length = len(request.tokens) // self._block_size if self._caching else 0
        self._extend_keys(request, length)
        found = [self._find(request.block_keys[:length], group) for group in range(len(self._groups))]
        agreed = False
        while length and not agreed:
            agreed = True
            for blocks, window in zip(found, self._windows, strict=True):
                # A hole spoils every length that needs it, and none that ends before it.
                first = self._first_needed(self._hit_tokens(request, length), window)
                hole = self._last_hole(blocks, first, length) if window else self._first_hole(blocks, length)
                if hole is not None:
                    length, agreed = hole, False
        if not self._groups:
            length = 0
        num_tokens = self._hit_tokens(request, length)
        tables = []
        for blocks, window in zip(found, self._windows, strict=True):
            first = self._first_needed(num_tokens, window)
            tables.append([NULL_BLOCK] * min(first, length) + [b for b in blocks[first:length] if b])
        loaded = {index for table in tables for index, block in enumerate(table) if block == LOAD}
        return PrefixHit(
            num_tokens,
            tables,
            copy=num_tokens < length * self._block_size,
            num_loaded=min(num_tokens, len(loaded) * self._block_size),
        )

    def fork(self, leader: Request, request: Request) -> PrefixHit | None:
        """What a waiting request may take from a running one with the same prompt: all of it that is done.

        Full blocks are shared, cached or not; a partly filled one is copied. None while the leader has
        not computed the prompt, once it is preempted, until a step of its own shows that what it copies
        or loads is there, and where its window has passed what is needed.
        """
        assert leader.root == request.root, "a request may not read the KV of another salt or plugin key"
        num_tokens = min(leader.num_prompt_tokens, len(request.tokens) - 1)
        if leader.num_done < num_tokens or leader.num_done == leader.num_taken:
            return None
        length = -(-num_tokens // self._block_size)
        tables = []
        for table, gone, window in zip(leader.tables, leader.freed, self._windows, strict=True):
            first = self._first_needed(num_tokens, window)
            if gone > first:
                return None
            tables.append([NULL_BLOCK] * min(first, length) + table[first:length])
        return PrefixHit(num_tokens, tables, copy=num_tokens < length * self._block_size)

    def needed_to_start(self, request: Request, hit: PrefixHit) -> int:
        """Free blocks a waiting request will take until its known tokens and one block more are computed."""
        kept = [table[:-1] if hit.copy else table for table in hit.tables]
        shared = sum(self.pool.refs(block) > 0 for table in kept for block in table if block > 0)
        return self._ahead(request) - shared

    # ---- done ----

    def start(self, request: Request, hit: PrefixHit) -> list[tuple[int, int]]:
        """Give it the blocks of its hit; returns the (source, destination) copies to make first."""
        request.tables = [list(table) for table in hit.tables]
        request.freed = [table.count(NULL_BLOCK) for table in hit.tables]
        request.num_computed = request.num_done = request.num_taken = hit.num_tokens
        request.num_known_blocks = hit.num_tokens // self._block_size
        request.num_slots = len(hit.tables[0]) * self._block_size if hit.tables else 0
        for table in request.tables:
            for block in table:
                if block > 0:
                    self.pool.hold(block)
        # What it loads is its own, and needs no copy.
        shared = [table for table in request.tables if hit.copy and table[-1] != LOAD]
        if hit.num_loaded:
            self._load(request)
        copies = []
        for table, fresh in zip(shared, self.pool.allocate(len(shared)), strict=True):
            copies.append((table[-1], fresh))
            self._copy_sources.append(table[-1])
            table[-1] = fresh
        self.num_copied += len(copies)
        return copies

    def grow(self, request: Request, num_tokens: int) -> list[list[int]]:
        """Make room up to ``num_tokens``; returns the blocks appended to each group's table, which nobody
        changes."""
        more = self._more_blocks(request, num_tokens)
        if more == 0:
            return self._nothing
        self._free_stale(request)
        added = []
        for table in request.tables:
            blocks = self.pool.allocate(more)
            table += blocks
            added.append(blocks)
        request.num_slots += more * self._block_size
        return added

    def end_plan(self) -> bytes:
        """Close a plan: its ``transfers``.

        Lets go of the sources of its copies, held so that nobody wrote to them in it.
        """
        self.pool.release(self._copy_sources)
        self._copy_sources.clear()
        return self._transfers.plan(self.pool.take_evicted())

    def load_failed(self, request_id: str) -> bool:
        """Some of what it was to load was not there; False if it runs no more or has started anew since.

        What it computed from there on is worthless: the caller takes its blocks back.
        """
        return self._transfers.fail(request_id)

    def publish(self, request: Request) -> None:
        """Make its full blocks known to the cache, as far as finished steps have filled them."""
        full = min(request.num_done, len(request.tokens)) // self._block_size
        if full <= request.num_known_blocks or not self._caching:
            return
        self._transfers.confirm(request.request_id)
        self._extend_keys(request, full)
        for index in range(request.num_known_blocks, full):
            for group, table in enumerate(request.tables):
                if table[index] != NULL_BLOCK:
                    self.pool.cache(table[index], group_key(request.block_keys[index], group))
        request.num_known_blocks = full

    def release(self, request: Request) -> None:
        """Take all its blocks back; the end of a sequence is reused before its beginning."""
        for blocks in zip(*(reversed(table) for table in request.tables), strict=True):
            self.pool.release(blocks)
        request.tables, request.freed = [], []
        request.num_computed = request.num_done = request.num_taken = 0
        request.num_known_blocks = request.num_slots = 0
        self._transfers.drop(request.request_id)

    def reset(self) -> bool:
        """Forget every cached block that no request holds, and all that a connector keeps.

        True if no block was held.
        """
        self._transfers.reset()
        return self.pool.reset()

    # ---- helpers ----

    def _find(self, keys: list[bytes], group: int) -> list[int | None]:
        """A group's blocks: where they are, LOAD where a connector has them, None where nobody has."""
        own = [group_key(key, group) for key in keys]
        blocks = [self.pool.find(key) for key in own]
        self._transfers.look_up(own, blocks, LOAD)
        return blocks

    def _load(self, request: Request) -> None:
        """Take blocks for what a connector has; until it is there, none of it counts as done."""
        loads = []
        for group, table in enumerate(request.tables):
            missing = [index for index, block in enumerate(table) if block == LOAD]
            for index, block in zip(missing, self.pool.allocate(len(missing)), strict=True):
                table[index] = block
                loads.append((group_key(request.block_keys[index], group), block))
                request.num_known_blocks = min(request.num_known_blocks, index)
        request.num_done = request.num_known_blocks * self._block_size
        self._transfers.start(request.request_id, loads)

    def _more_blocks(self, request: Request, num_tokens: int) -> int:
        if num_tokens <= request.num_slots or not request.tables:
            return 0
        return -(-(num_tokens - request.num_slots) // self._block_size)

    def _ahead(self, request: Request) -> int:
        tokens = min(request.num_known + self._block_size, request.limit)
        return sequence_blocks(self._groups, tokens, self._chunk)

    def _first_needed(self, num_computed: int, window: int | None) -> int:
        """First block that the token after ``num_computed`` still sees."""
        return 0 if window is None else max(0, num_computed - (window - 1)) // self._block_size

    def _num_stale(self, request: Request) -> int:
        """Blocks behind a window that nobody else holds."""
        return sum(
            self.pool.refs(block) == 1
            for table, gone, window in zip(request.tables, request.freed, self._windows, strict=True)
            for block in table[gone : self._first_needed(request.num_computed, window)]
        )

    def _free_stale(self, request: Request) -> None:
        for group, window in enumerate(self._windows):
            table, gone = request.tables[group], request.freed[group]
            first = min(self._first_needed(request.num_computed, window), len(table))
            if first > gone:
                self.pool.release(reversed(table[gone:first]))
                table[gone:first] = [NULL_BLOCK] * (first - gone)
                request.freed[group] = first

    def _extend_keys(self, request: Request, num_blocks: int) -> None:
        keys, size = request.block_keys, self._block_size
        for index in range(len(keys), num_blocks):
            parent = keys[-1] if keys else request.root
            keys.append(block_key(parent, request.tokens[index * size : (index + 1) * size]))

    def _hit_tokens(self, request: Request, num_blocks: int) -> int:
        return min(num_blocks * self._block_size, len(request.tokens) - 1)

    @staticmethod
    def _first_hole(blocks: list[int | None], length: int) -> int | None:
        return next((index for index in range(length) if blocks[index] is None), None)

    @staticmethod
    def _last_hole(blocks: list[int | None], first: int, length: int) -> int | None:
        return next((index for index in range(length - 1, first - 1, -1) if blocks[index] is None), None)
