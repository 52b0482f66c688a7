"""The cache that is bounded in number and in bytes, beside a plain model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmkit.lru import LruCache

ITEMS = 3
BYTES = 10

steps = st.lists(
    st.tuples(st.sampled_from(("put", "get", "pop")), st.integers(0, 5), st.integers(0, 12)), max_size=40
)


@given(steps)
def test_it_keeps_the_last_used_within_its_bounds(steps: list[tuple[str, int, int]]) -> None:
    cache = LruCache[int, int](ITEMS, BYTES)
    model: list[tuple[int, int]] = []  # (key, size), the last used last
    for count, (what, key, size) in enumerate(steps):
        held = [item for item in model if item[0] == key]
        others = [item for item in model if item[0] != key]
        if what == "put":
            cache.put(key, count, size)
            model = [*others, (key, size)]
            while len(model) > ITEMS or sum(size for _, size in model) > BYTES:
                del model[0]
        elif what == "get":
            assert (cache.get(key) is not None) == bool(held)
            model = others + held
        else:
            cache.pop(key)
            model = others
        assert len(cache) == len(model)
    assert [key for key in range(6) if cache.get(key) is not None] == sorted(key for key, _ in model)


def test_a_value_replaces_the_one_before() -> None:
    cache = LruCache[str, str](ITEMS, BYTES)
    cache.put("a", "first", 9)
    cache.put("a", "second", 9)
    cache.put("b", "other", 1)
    assert cache.get("a") == "second"
    assert cache.get("b") == "other"
