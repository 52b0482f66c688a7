"""The small operations between linear layers as one pass over memory each, for float32.

At a few tokens torch spends more time on starting its five operations of a norm than on computing them. Every
row is computed in an order that only its width decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

from llmkit.contracts import OpName
from llmkit_cpu_paged.jit import compile_for, inline, kernel
from llmkit_cpu_paged.memory import whole_rows, write_back
from llmkit_cpu_paged.simd import (
    LANES,
    add,
    div,
    exp,
    first,
    fma,
    load,
    load_one,
    mul,
    splat,
    store,
    store_one,
    sub,
    take_ticket,
    total,
)
from llmkit_cpu_paged.team import Team

ALONE_BELOW = 1 << 15
"""Elements that do not pay for waking the team."""
_ROWS = 4
"""Rows a thread takes at a time."""


class CpuOps:
    """The operations with the threads they share."""

    def __init__(self, num_threads: int) -> None:
        self._team = Team(num_threads)
        self._next = np.zeros(1, np.int64)
        _compile()

    def table(self) -> dict[OpName, Callable[..., Any]]:
        return {
            "rms_norm": self.rms_norm,
            "add_rms_norm": self.add_rms_norm,
            "rope": self.rope,
            "silu_mul": self.silu_mul,
        }

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = x.new_empty(x.shape)
        self._run(x.numel(), _rms_norm, whole_rows(x), weight, eps, out)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, rows = x.new_empty(x.shape), whole_rows(residual)
        self._run(x.numel(), _add_rms_norm, whole_rows(x), rows, weight, eps, out)
        write_back(rows, residual)
        return out

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        q_rows, k_rows = whole_rows(q), whole_rows(k)
        self._run(q.numel(), _rope, q_rows, k_rows, whole_rows(cos), whole_rows(sin))
        write_back(q_rows, q)
        write_back(k_rows, k)

    def silu_mul(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        self._run(x.numel(), _silu_mul, whole_rows(x), out)
        return out

    def _run(self, elements: int, function: Callable[..., None], *arguments: Tensor | float) -> None:
        arrays = [value.numpy() if isinstance(value, Tensor) else value for value in arguments]
        self._next[0] = 0
        if elements < ALONE_BELOW:
            function(*arrays, self._next)
        else:
            self._team.run(function, (*arrays, self._next))


# ---- kernels: every thread takes rows by ticket until none is left ----


@kernel
def _rms_norm(x: Any, weight: Any, eps: float, out: Any, next_rows: Any) -> None:
    while True:
        start = take_ticket(next_rows) * _ROWS
        if start >= x.shape[0]:
            break
        for row in range(start, min(start + _ROWS, x.shape[0])):
            _normalize(x, row, weight, eps, out)


@kernel
def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: float, out: Any, next_rows: Any) -> None:
    size = x.shape[1]
    whole = size - size % LANES
    while True:
        start = take_ticket(next_rows) * _ROWS
        if start >= x.shape[0]:
            break
        for row in range(start, min(start + _ROWS, x.shape[0])):
            for c in range(0, whole, LANES):
                store(residual, row, c, add(load(residual, row, c), load(x, row, c)))
            for c in range(whole, size):
                store_one(residual, row, c, load_one(residual, row, c) + load_one(x, row, c))
            _normalize(residual, row, weight, eps, out)


@inline
def _normalize(x: Any, row: int, weight: Any, eps: float, out: Any) -> None:
    size = x.shape[1]
    whole = size - size % LANES
    squares = splat(np.float32(0))
    for c in range(0, whole, LANES):
        value = load(x, row, c)
        squares = fma(value, value, squares)
    square = total(squares)
    for c in range(whole, size):
        square += load_one(x, row, c) * load_one(x, row, c)
    inverse = np.float32(1) / np.sqrt(square / np.float32(size) + eps)
    for c in range(0, whole, LANES):
        store(out, row, c, mul(mul(load(x, row, c), splat(inverse)), load(weight, 0, c)))
    for c in range(whole, size):
        store_one(out, row, c, load_one(x, row, c) * inverse * load_one(weight, 0, c))


@kernel
def _rope(q: Any, k: Any, cos: Any, sin: Any, next_rows: Any) -> None:
    while True:
        start = take_ticket(next_rows) * _ROWS
        if start >= q.shape[0]:
            break
        for token in range(start, min(start + _ROWS, q.shape[0])):
            for head in range(q.shape[1]):
                _rotate(q, token, head * q.shape[2], cos, sin)
            for head in range(k.shape[1]):
                _rotate(k, token, head * k.shape[2], cos, sin)


@inline
def _rotate(heads: Any, token: int, start: int, cos: Any, sin: Any) -> None:
    half = cos.shape[1]
    whole = half - half % LANES
    for c in range(0, whole, LANES):
        a, b = load(cos, token, c), load(sin, token, c)
        low, high = load(heads, token, start + c), load(heads, token, start + half + c)
        store(heads, token, start + c, sub(mul(low, a), mul(high, b)))
        store(heads, token, start + half + c, add(mul(high, a), mul(low, b)))
    for c in range(whole, half):
        x, y = load_one(cos, token, c), load_one(sin, token, c)
        left, right = load_one(heads, token, start + c), load_one(heads, token, start + half + c)
        store_one(heads, token, start + c, left * x - right * y)
        store_one(heads, token, start + half + c, right * x + left * y)


@kernel
def _silu_mul(x: Any, out: Any, next_rows: Any) -> None:
    size = out.shape[1]
    whole = size - size % LANES
    while True:
        start = take_ticket(next_rows) * _ROWS
        if start >= x.shape[0]:
            break
        for row in range(start, min(start + _ROWS, x.shape[0])):
            for c in range(0, whole, LANES):
                store(out, row, c, mul(_silu(load(x, row, c)), load(x, row, size + c)))
            for c in range(whole, size):
                gate = first(_silu(splat(load_one(x, row, c))))
                store_one(out, row, c, gate * load_one(x, row, size + c))


@inline
def _silu(x: Any) -> Any:
    one = splat(np.float32(1))
    return div(x, add(one, exp(sub(splat(np.float32(0)), x))))


def _compile() -> None:
    """Make the kernels now rather than in the first step."""
    vector, matrix, heads = (numba.types.Array(numba.float32, rank, "A") for rank in (1, 2, 3))
    tickets, real = numba.types.Array(numba.int64, 1, "C"), numba.float32
    compile_for(_rms_norm, (matrix, vector, real, matrix, tickets))
    compile_for(_add_rms_norm, (matrix, matrix, vector, real, matrix, tickets))
    compile_for(_rope, (heads, heads, matrix, matrix, tickets))
    compile_for(_silu_mul, (matrix, matrix, tickets))
