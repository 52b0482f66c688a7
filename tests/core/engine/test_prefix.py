"""Keys of cached blocks: what differs never shares one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmkit.contracts import KVCacheSpec
from llmkit.engine.prefix import block_key, cache_root, group_key, request_root

from .harness import ROOT, Engine, make_request

SAME = list(range(8))
FULL, HALF = KVCacheSpec("full", 4, 8, "fp32"), KVCacheSpec("full", 4, 8, "fp16")


def test_keys_from_different_sources_never_collide() -> None:
    """B104 (vllm-project/vllm#44701): the same tokens under an adapter X, a salt X and neither."""
    variants: list[dict[str, Any]] = [
        {"cache_keys": (("lora", b"X"),)},
        {"cache_salt": "X"},
        {},
        {"cache_salt": ""},
        {"cache_keys": (("lora", b""), ("X", b""))},
        {"cache_keys": (("lora", b"X"), ("image", b"X"))},
        {"cache_keys": (("lora", b""),), "cache_salt": "X"},
        {"cache_keys": (("loraX", b""),)},
    ]
    requests = [make_request(str(i), SAME, **fields) for i, fields in enumerate(variants)]
    assert len({block_key(request_root(ROOT, request), SAME[:4]) for request in requests}) == len(variants)
    engine = Engine(num_blocks=200, max_num_seqs=1)
    engine.add(*requests)
    engine.run()
    assert [engine.last[request.request_id].cached_tokens for request in requests] == [0] * len(variants)
    assert len({tuple(tokens) for tokens in engine.tokens.values()}) == 1


def test_roots_tell_deployments_models_and_encodings_apart() -> None:
    roots = [
        cache_root("", "m", [FULL]),
        cache_root("m", "", [FULL]),
        cache_root("", "m", [HALF]),
        cache_root("", "m", [FULL, FULL]),
        cache_root("", "n", [FULL]),
    ]
    assert all(a != b for a, b in combinations(roots, 2))
    assert roots[0] == cache_root("", "m", [FULL])


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4))
def test_a_key_stands_for_everything_before_it(blocks: list[list[int]]) -> None:
    def chain(parts: list[list[int]]) -> bytes:
        key = ROOT
        for part in parts:
            key = block_key(key, part)
        return key

    other = [list(part) for part in blocks]
    other[0][0] += 1
    assert chain(blocks) != chain(other)
    assert chain(blocks) == chain([list(part) for part in blocks])
    assert len(chain(blocks)) == 32


def test_groups_have_keys_of_their_own() -> None:
    assert len({group_key(ROOT, group) for group in range(300)}) == 300


def test_large_token_ids_are_told_apart() -> None:
    assert block_key(ROOT, [1, 2**31]) != block_key(ROOT, [1, 2**32])
