"""The block pool: reference counts, the order of reuse, and what stays known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.engine.block_pool import KVBlockPool


def test_the_null_block_is_never_handed_out() -> None:
    pool = KVBlockPool(5)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_held) == (0, 4)
    pool.release([0, 1])
    assert pool.num_free == 1


def test_blocks_without_contents_are_reused_before_cached_ones() -> None:
    pool = KVBlockPool(5)
    a, b, c, d = pool.allocate(4)
    pool.cache(a, b"a")
    pool.cache(c, b"c")
    pool.release([a, b, c, d])
    assert pool.num_cached == 2
    assert set(pool.allocate(2)) == {b, d}
    assert (pool.find(b"a"), pool.find(b"c")) == (a, c)


def test_the_least_recently_used_is_evicted_first() -> None:
    pool = KVBlockPool(4)
    a, b, c = pool.allocate(3)
    for block, key in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.cache(block, key)
    pool.release([a, b, c])
    pool.hold(a)
    pool.release([a])
    assert [pool.allocate(1)[0] for _ in range(3)] == [b, c, a]
    assert pool.find(b"a") is None


def test_a_held_block_survives_its_other_holders() -> None:
    pool = KVBlockPool(3)
    (block,) = pool.allocate(1)
    pool.cache(block, b"k")
    pool.hold(block)
    pool.release([block])
    assert pool.refs(block) == 1
    assert pool.allocate(1) != [block]
    assert pool.find(b"k") == block


def test_the_first_block_with_the_same_contents_stays_known() -> None:
    pool = KVBlockPool(3)
    a, b = pool.allocate(2)
    pool.cache(a, b"k")
    pool.cache(b, b"k")
    assert pool.find(b"k") == a
    pool.release([b])
    assert pool.num_cached == 0


def test_reset_forgets_what_nobody_holds() -> None:
    pool = KVBlockPool(3)
    a, b = pool.allocate(2)
    pool.cache(a, b"a")
    pool.cache(b, b"b")
    pool.release([a])
    assert not pool.reset()
    assert (pool.find(b"a"), pool.find(b"b")) == (None, b)
    pool.release([b])
    assert pool.reset()
    assert pool.find(b"b") is None


@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda pool, block: pool.release([block, block]), id="released-twice"),
        pytest.param(lambda pool, block: pool.allocate(9), id="more-than-there-are"),
        pytest.param(lambda pool, block: pool.hold(3), id="held-without-contents"),
        pytest.param(lambda pool, block: pool.cache(3, b"k"), id="cached-by-nobody"),
    ],
)
def test_our_own_mistakes_are_caught(misuse: object) -> None:
    pool = KVBlockPool(4)
    (block,) = pool.allocate(1)
    with pytest.raises(AssertionError):
        misuse(pool, block)  # type: ignore[operator]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ahrc"), st.integers(0, 9)), max_size=60))
def test_books_hold_after_anything(actions: list[tuple[str, int]]) -> None:
    pool = KVBlockPool(7)
    held: list[int] = []
    for action, number in actions:
        if action == "a" and pool.num_free:
            held += pool.allocate(1)
        elif action == "h" and (block := pool.find(bytes([number]))) is not None:
            pool.hold(block)
            held.append(block)
        elif action == "r" and held:
            pool.release([held.pop(number % len(held))])
        elif action == "c" and held:
            pool.cache(held[number % len(held)], bytes([number]))
        pool.check()
        assert pool.num_held == len(set(held))
        assert all(pool.refs(block) == held.count(block) for block in range(1, 7))
