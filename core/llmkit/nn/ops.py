"""The plain torch version of every operation in ``llmkit.contracts.Ops``: the default, and the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from llmkit.contracts import OP_NAMES, Choice, Components, OpName, Ops, OpsEnv

_LANES = 64
"""A multiple of every vector loop's step: with it no element of a row falls into a scalar tail."""
_SERIAL_ELEMENTS = 32768
"""Below so many elements torch runs an elementwise loop on one thread (``at::internal::GRAIN_SIZE``)."""


def torch_ops(env: OpsEnv) -> Ops:
    """Torch's version of every operation; row-invariant ones where ``env.deterministic`` asks."""
    careful = env.deterministic and env.device == "cpu"
    return Ops(
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope=rope,
        silu_mul=silu_mul_row_invariant if careful else silu_mul,
    )


def bind_ops(components: Components, env: OpsEnv) -> tuple[Ops, tuple[Choice, ...]]:
    """Take each operation from the best usable plugin that offers it, the rest from torch.

    The choices name every plugin that gave something, with the operations it gave.
    """
    table: dict[OpName, Callable[..., Any]] = {}
    choices: list[Choice] = []
    for name in components.usable("ops", env):
        offered: dict[OpName, Callable[..., Any]] = components.create("ops", name, env)
        taken = [op for op in OP_NAMES if op in offered and op not in table]
        table |= {op: offered[op] for op in taken}
        if taken:
            choices.append(Choice("ops", name, ", ".join(taken)))
    base = torch_ops(env)
    left = [op for op in OP_NAMES if op not in table]
    if left:
        choices.append(Choice("ops", "torch", ", ".join(left)))
    return Ops(**({op: getattr(base, op) for op in left} | table)), tuple(choices)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x [tokens, n]`` over the root of its mean square (fp32), times ``weight [n]``."""
    if x.dtype != torch.float32:
        wide = x.float()
        return wide.mul_(_inverse_rms(wide, eps)).to(x.dtype).mul_(weight)
    return (x * _inverse_rms(x, eps)).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` into ``residual`` in place; return the norm of the sum."""
    residual.add_(x)
    return rms_norm(residual, weight, eps)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first ``2 * cos.shape[1]`` entries of every head in place, halves paired (NeoX)."""
    half = cos.shape[1]
    cos, sin = cos[:, None, None], sin[:, None, None]
    for heads in (q, k):
        pairs = heads[..., : 2 * half].view(*heads.shape[:2], 2, half)
        low_cos, high_cos = (pairs * cos).unbind(2)
        low_sin, high_sin = (pairs * sin).unbind(2)
        low, high = pairs.unbind(2)
        torch.sub(low_cos, high_sin, out=low)
        torch.add(high_cos, low_sin, out=high)


def silu_mul(x: Tensor) -> Tensor:
    """``x [tokens, 2n] -> silu(x[:, :n]) * x[:, n:]``."""
    half = x.shape[1] // 2
    return functional.silu(x[:, :half]).mul_(x[:, half:])


def silu_mul_row_invariant(x: Tensor) -> Tensor:
    """:func:`silu_mul` whose rows have the same bits in every batch.

    Torch's loops use another ``exp`` for the few elements behind the last full vector, and threads cut
    a tensor anywhere, so which elements those are depends on the number of rows. Here rows are
    padded to whole vectors and cut into pieces that one thread runs.
    """
    tokens, half = x.shape[0], x.shape[1] // 2
    padding = -half % _LANES
    gate = functional.pad(x[:, :half], (0, padding)) if padding else x[:, :half]
    step = max(1, (_SERIAL_ELEMENTS - 1) // (half + padding))
    out = torch.empty(tokens, half + padding, dtype=x.dtype, device=x.device)
    for start in range(0, tokens, step):
        _silu_piece(gate[start : start + step], out[start : start + step])
    return out[:, :half].mul_(x[:, half:]) if not padding else out[:, :half] * x[:, half:]


def _silu_piece(x: Tensor, out: Tensor) -> None:
    """Few enough elements for one thread; a single huge row is cut at whole vectors."""
    width = x.shape[1]
    piece = (_SERIAL_ELEMENTS - 1) // _LANES * _LANES
    for start in range(0, width, piece):
        torch.ops.aten.silu.out(x[:, start : start + piece], out=out[:, start : start + piece])


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()


__all__ = [
    "add_rms_norm",
    "bind_ops",
    "rms_norm",
    "rope",
    "silu_mul",
    "silu_mul_row_invariant",
    "torch_ops",
]
