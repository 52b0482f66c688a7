"""Choices of one request share what the first one computed, and write to copies of their own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import NULL_BLOCK, KVCacheSpec
from llmkit.engine.kv_manager import KVManager
from llmkit.engine.layout import KVBudget, plan_layout
from llmkit.engine.request import Request

from .harness import ROOT, make_request

BLOCK = 4
LAYERS = {
    "full": (KVCacheSpec("full", BLOCK, 8, "x"),),
    "sliding": (KVCacheSpec("full", BLOCK, 8, "x"), KVCacheSpec("sliding", BLOCK, 8, "x", window=6)),
    "window-1": (KVCacheSpec("full", BLOCK, 8, "x"), KVCacheSpec("sliding", BLOCK, 8, "x", window=1)),
}
Memory = dict[tuple[int, int], tuple[int, ...]]
"""(block, place within it) -> the tokens that the KV there was computed from."""


class Sequences:
    """Requests over one manager and a memory that knows what was written where."""

    def __init__(self, layers: tuple[KVCacheSpec, ...], *, caching: bool = True) -> None:
        planned = plan_layout(
            KVBudget(layers, 0, "none"),
            CacheConfig(block_size=BLOCK, num_gpu_blocks_override=100),
            SchedulerConfig(),
            model_len=None,
            max_model_len=64,
        )
        self.windows = [layer.window for layer in layers]
        self.kv = KVManager(planned.layout, BLOCK, 64, caching=caching)
        self.memory: Memory = {}

    def request(self, order: int, prompt: list[int], root: bytes = ROOT) -> Request:
        source = make_request(str(order), prompt, 20)
        return Request(source, order, len(prompt) + 20, root, list(prompt))

    def start_cold(self, request: Request) -> None:
        self.kv.start(request, self.kv.find_prefix(request))

    def compute(self, request: Request, num_tokens: int) -> None:
        """Up to so many tokens; only blocks that nobody else reads may be written."""
        self.kv.grow(request, num_tokens)
        for table in request.tables:
            for position in range(request.num_computed, num_tokens):
                block, place = table[position // BLOCK], position % BLOCK
                assert block != NULL_BLOCK
                assert self.kv.pool.refs(block) == 1, "it writes to a block that others read"
                self.memory[block, place] = tuple(request.tokens[: position + 1])
        request.num_computed = request.num_done = num_tokens
        self.kv.publish(request)

    def fork(self, leader: Request, request: Request) -> bool:
        hit = self.kv.fork(leader, request)
        if hit is None:
            return False
        free = self.kv.pool.num_free
        for source, destination in self.kv.start(request, hit):
            assert self.kv.pool.refs(destination) == 1
            for place in range(BLOCK):
                self.memory[destination, place] = self.memory.get((source, place), ())
        self.kv.end_plan()
        assert free - self.kv.pool.num_free <= len(request.tables), "more than the last block was copied"
        return True

    def check(self, request: Request) -> None:
        """All that its next token sees is there and was computed from its own tokens."""
        for table, window in zip(request.tables, self.windows, strict=True):
            first = 0 if window is None else max(0, request.num_computed - window + 1)
            for position in range(first, request.num_computed):
                held = self.memory[table[position // BLOCK], position % BLOCK]
                assert held == tuple(request.tokens[: position + 1])


@settings(max_examples=80, deadline=None)
@given(
    layers=st.sampled_from(sorted(LAYERS)),
    num_prompt=st.integers(1, 20),
    ahead=st.integers(0, 4),
    outputs=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    caching=st.booleans(),
)
def test_siblings_see_their_own_tokens(
    layers: str, num_prompt: int, ahead: int, outputs: list[int], caching: bool
) -> None:
    """Whatever the leader and earlier siblings wrote, each goes on from the prompt as if alone."""
    sequences = Sequences(LAYERS[layers], caching=caching)
    prompt = list(range(num_prompt))
    leader = sequences.request(0, prompt)
    sequences.start_cold(leader)
    sequences.compute(leader, num_prompt)
    leader.tokens += [100] * ahead
    sequences.compute(leader, num_prompt + max(0, ahead - 1))
    running = [leader]
    for order, count in enumerate(outputs, start=1):
        sibling = sequences.request(order, prompt)
        if not sequences.fork(leader, sibling):
            assert layers != "full", "only a window may have moved on"
            continue
        assert sibling.num_computed == num_prompt - 1
        sequences.check(sibling)
        sibling.tokens += [100 + order] * count
        sequences.compute(sibling, len(sibling.tokens))
        running.append(sibling)
        for request in running:
            sequences.check(request)
    for request in running:
        sequences.kv.release(request)
    sequences.kv.pool.check()
    assert sequences.kv.pool.num_held == 0


def test_full_blocks_are_shared_and_the_partial_one_is_copied() -> None:
    sequences = Sequences(LAYERS["full"], caching=False)
    leader, sibling = (sequences.request(order, list(range(11))) for order in range(2))
    sequences.start_cold(leader)
    sequences.compute(leader, 11)
    free = sequences.kv.pool.num_free
    hit = sequences.kv.fork(leader, sibling)
    assert hit is not None
    assert (hit.num_tokens, hit.copy) == (10, True)
    assert sequences.kv.needed_to_start(sibling, hit) == 2  # the copy, and a block to go on
    (pair,) = sequences.kv.start(sibling, hit)
    assert pair == (leader.tables[0][2], sibling.tables[0][2])
    assert leader.tables[0][:2] == sibling.tables[0][:2]
    assert sequences.kv.num_copied == 1
    sequences.kv.end_plan()
    assert sequences.kv.pool.num_free == free - 1


def test_a_prompt_that_ends_on_a_block_needs_no_copy_of_what_it_only_reads() -> None:
    sequences = Sequences(LAYERS["full"], caching=False)
    leader, sibling = (sequences.request(order, list(range(9))) for order in range(2))
    sequences.start_cold(leader)
    sequences.compute(leader, 9)
    hit = sequences.kv.fork(leader, sibling)
    assert hit is not None
    assert (hit.num_tokens, hit.copy, len(hit.tables[0])) == (8, False, 2)


def test_a_preempted_sibling_takes_the_whole_prompt() -> None:
    sequences = Sequences(LAYERS["full"], caching=False)
    leader, sibling = (sequences.request(order, list(range(10))) for order in range(2))
    sequences.start_cold(leader)
    sequences.compute(leader, 10)
    sibling.tokens += [7, 8, 9]
    assert sequences.fork(leader, sibling)
    assert sibling.num_computed == 10
    sequences.check(sibling)


@pytest.mark.parametrize("state", ["computing", "preempted", "moved-on"])
def test_nothing_is_taken_from_a_leader_that_has_it_not(state: str) -> None:
    sequences = Sequences(LAYERS["sliding"], caching=False)
    leader, sibling = (sequences.request(order, list(range(10))) for order in range(2))
    sequences.start_cold(leader)
    sequences.compute(leader, 8 if state == "computing" else 10)
    if state == "preempted":
        sequences.kv.release(leader)
    if state == "moved-on":
        leader.tokens += [1] * 10
        sequences.compute(leader, 15)
        sequences.compute(leader, 20)
    assert sequences.kv.fork(leader, sibling) is None


def test_results_that_may_still_fail_are_not_shared() -> None:
    """A planned step counts as computed; only a finished one has its KV for certain."""
    sequences = Sequences(LAYERS["full"])
    leader, sibling = (sequences.request(order, list(range(10))) for order in range(2))
    sequences.start_cold(leader)
    sequences.kv.grow(leader, 10)
    leader.num_computed = 10
    assert sequences.kv.fork(leader, sibling) is None


def test_what_a_leader_is_still_to_copy_is_not_shared() -> None:
    """A plan's copies happen at once: a copy of a copy would be of what was there before."""
    sequences = Sequences(LAYERS["full"])
    first, leader, sibling = (sequences.request(order, list(range(BLOCK * 2))) for order in range(3))
    sequences.start_cold(first)
    sequences.compute(first, BLOCK * 2)
    hit = sequences.kv.find_prefix(leader)
    assert hit.copy
    sequences.kv.start(leader, hit)
    sibling.tokens.pop()
    assert sequences.kv.fork(leader, sibling) is None


def test_another_salt_shares_nothing() -> None:
    sequences = Sequences(LAYERS["full"])
    leader: Any = sequences.request(0, list(range(10)))
    sequences.start_cold(leader)
    sequences.compute(leader, 10)
    with pytest.raises(AssertionError, match="salt"):
        sequences.kv.fork(leader, sequences.request(1, list(range(10)), root=b"s" * 32))
