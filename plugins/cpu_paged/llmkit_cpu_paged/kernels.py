"""Attention over paged KV, in numba.

A block of one layer holds, head after head, K and then V. K is cut into tiles of 16 tokens, each stored
``[head_size, 16]``, so that 16 scores of a query are 16 lanes; V is ``[block_size, columns]`` with the head's
size rounded up to whole lanes. An element is float32, float16 or bfloat16.

A query meets its keys tile by tile, at absolute positions that are multiples of 16, with a running softmax.
Nothing in a row's arithmetic knows how many other queries share the tile: it is bit-equal in every batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmkit_cpu_paged.jit import inline, kernel
from llmkit_cpu_paged.simd import (
    LANES,
    add,
    div,
    exp,
    fma,
    keep,
    largest,
    load,
    load_one,
    mul,
    splat,
    store,
    store_one,
    sub,
    take_ticket,
    tanh,
    total,
)

TILE_TOKENS = 8
"""Query tokens that go over the keys together."""
_ROWS = 4
"""Query rows (token and head) whose sums are in registers at once."""
_UNSEEN = np.float32(-np.inf)


@kernel
def store_kv(
    k: Any, v: Any, slots: Any, cache: Any, block_size: int, kv_heads: int, head_size: int, head_size_v: int
) -> None:
    """Write ``k`` and ``v`` [tokens, kv_heads, size] of every token with a slot."""
    columns = -(-head_size_v // LANES) * LANES
    head_elements = block_size * (head_size + columns)
    for token in range(len(slots)):
        slot = slots[token]
        if slot < 0:
            continue
        block, place = slot // block_size, slot % block_size
        for head in range(kv_heads):
            base = head * head_elements
            lane = base + place // LANES * LANES * head_size + place % LANES
            for d in range(head_size):
                store_one(cache, block, lane + d * LANES, load_one(k, token, head * head_size + d))
            row = base + block_size * head_size + place * columns
            for d in range(head_size_v):
                store_one(cache, block, row + d, load_one(v, token, head * head_size_v + d))


@kernel
def attend(
    q: Any,
    out: Any,
    cache: Any,
    table: Any,
    query_start: Any,
    seq_lens: Any,
    tiles: Any,
    num_tiles: int,
    counter: Any,
    block_size: int,
    kv_heads: int,
    group: int,
    head_size: int,
    head_size_v: int,
    window: int,
    scale: float,
    soft_cap: float,
) -> None:
    """Work off tickets of ``counter``, each a tile of queries and a KV head, until none is left.

    :param q: [tokens, heads, head_size], rows at any stride.
    :param out: [tokens, heads, head_size_v], likewise.
    :param table: int32 [rows, blocks].
    :param tiles: int32 [tiles, 3]: row, its first query, number of queries.
    :param window: tokens a query sees, itself included; 0 is all.
    :param soft_cap: 0 is none.
    """
    columns = -(-head_size_v // LANES) * LANES
    most_rows = -(-TILE_TOKENS * group // _ROWS) * _ROWS
    queries = np.empty((most_rows, head_size), np.float32)
    result = np.empty((most_rows, columns), np.float32)
    weights = np.empty((most_rows, LANES), np.float32)
    sums = np.empty((most_rows, LANES), np.float32)
    maxima = np.empty(most_rows, np.float32)
    while True:
        ticket = take_ticket(counter)
        if ticket >= num_tiles * kv_heads:
            break
        tile, head = ticket // kv_heads, ticket % kv_heads
        row, offset, count = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
        token = query_start[row] + offset
        position = seq_lens[row] - (query_start[row + 1] - query_start[row]) + offset
        rows = count * group
        _begin(q, queries, result, sums, maxima, token, head, rows, group, head_size, columns)
        first_key = max(0, position - window + 1) if window > 0 else 0
        for key_tile in range(first_key // LANES, (position + count - 1) // LANES + 1):
            key = key_tile * LANES
            block = np.intp(table[row, key // block_size])
            base = head * block_size * (head_size + columns)
            place = key % block_size
            keys_at = base + place * head_size
            values_at = base + block_size * head_size + place * columns
            all_seen = key + LANES <= position + 1 and (window <= 0 or key > position + count - 1 - window)
            for first in range(0, rows, _ROWS):
                _scores(queries, first, head_size, cache, block, keys_at, weights)
                for i in range(first, min(first + _ROWS, rows)):
                    last = position + i // group - key + 1
                    low = max(0, last - window) if window > 0 else 0
                    if low < LANES and last > 0:
                        _softmax(i, low, last, scale, soft_cap, columns, weights, maxima, sums, result)
                        if not all_seen:
                            _add_seen(
                                i, low, min(last, LANES), weights, cache, block, values_at, columns, result
                            )
                if all_seen:
                    _add_all(first, weights, cache, block, values_at, columns, result)
        _finish(out, result, sums, token, head, rows, group, head_size_v, columns)


@inline
def _begin(
    q: Any,
    queries: Any,
    result: Any,
    sums: Any,
    maxima: Any,
    token: int,
    head: int,
    rows: int,
    group: int,
    head_size: int,
    columns: int,
) -> None:
    """Row ``i`` is query token ``i // group`` and head ``i % group`` of the KV head's group."""
    for i in range(-(-rows // _ROWS) * _ROWS):
        source = min(i, rows - 1)
        start = (head * group + source % group) * head_size
        for d in range(head_size):
            queries[i, d] = load_one(q, token + source // group, start + d)
        store(sums, i, 0, splat(0.0))
        maxima[i] = _UNSEEN
        for c in range(0, columns, LANES):
            store(result, i, c, splat(0.0))


@inline
def _scores(queries: Any, first: int, head_size: int, cache: Any, block: int, at: int, scores: Any) -> None:
    """``scores[first : first + 4] = queries[first : first + 4] @ K``, each a sum in order of ``d``."""
    zero = splat(0.0)
    s0, s1, s2, s3 = zero, zero, zero, zero
    for d in range(head_size):
        k = load(cache, block, at + d * LANES)
        s0 = fma(splat(load_one(queries, first, d)), k, s0)
        s1 = fma(splat(load_one(queries, first + 1, d)), k, s1)
        s2 = fma(splat(load_one(queries, first + 2, d)), k, s2)
        s3 = fma(splat(load_one(queries, first + 3, d)), k, s3)
    store(scores, first, 0, s0)
    store(scores, first + 1, 0, s1)
    store(scores, first + 2, 0, s2)
    store(scores, first + 3, 0, s3)


@inline
def _softmax(
    i: int,
    low: int,
    high: int,
    scale: float,
    soft_cap: float,
    columns: int,
    weights: Any,
    maxima: Any,
    sums: Any,
    result: Any,
) -> None:
    """Turn row ``i``'s scores into weights relative to the largest score so far."""
    scores = mul(load(weights, i, 0), splat(scale))
    if soft_cap > 0:
        scores = mul(tanh(div(scores, splat(soft_cap))), splat(soft_cap))
    scores = keep(scores, low, high, _UNSEEN)
    here = largest(scores)
    if not here <= maxima[i]:
        shrink = exp(sub(splat(maxima[i]), splat(here)))
        store(sums, i, 0, mul(load(sums, i, 0), shrink))
        for c in range(0, columns, LANES):
            store(result, i, c, mul(load(result, i, c), shrink))
        maxima[i] = here
    seen = keep(exp(sub(scores, splat(maxima[i]))), low, high, np.float32(0))
    store(sums, i, 0, add(load(sums, i, 0), seen))
    store(weights, i, 0, seen)


@inline
def _add_all(first: int, weights: Any, cache: Any, block: int, at: int, columns: int, result: Any) -> None:
    """``result[first : first + 4] += weights[first : first + 4] @ V``, each a sum in order of tokens."""
    for c in range(0, columns, LANES):
        r0, r1 = load(result, first, c), load(result, first + 1, c)
        r2, r3 = load(result, first + 2, c), load(result, first + 3, c)
        for t in range(LANES):
            v = load(cache, block, at + t * columns + c)
            r0 = fma(splat(load_one(weights, first, t)), v, r0)
            r1 = fma(splat(load_one(weights, first + 1, t)), v, r1)
            r2 = fma(splat(load_one(weights, first + 2, t)), v, r2)
            r3 = fma(splat(load_one(weights, first + 3, t)), v, r3)
        store(result, first, c, r0)
        store(result, first + 1, c, r1)
        store(result, first + 2, c, r2)
        store(result, first + 3, c, r3)


@inline
def _add_seen(
    i: int, low: int, high: int, weights: Any, cache: Any, block: int, at: int, columns: int, result: Any
) -> None:
    """As :func:`_add_all` for one row that sees tokens ``low`` to ``high`` of the tile; the others' V may be
    anything and is not read."""
    for c in range(0, columns, LANES):
        r = load(result, i, c)
        for t in range(low, high):
            r = fma(splat(load_one(weights, i, t)), load(cache, block, at + t * columns + c), r)
        store(result, i, c, r)


@inline
def _finish(
    out: Any,
    result: Any,
    sums: Any,
    token: int,
    head: int,
    rows: int,
    group: int,
    head_size_v: int,
    columns: int,
) -> None:
    for i in range(rows):
        whole = splat(total(load(sums, i, 0)))
        for c in range(0, columns, LANES):
            store(result, i, c, div(load(result, i, c), whole))
        start = (head * group + i % group) * head_size_v
        for d in range(head_size_v):
            store_one(out, token + i // group, start + d, result[i, d])
