"""Whether a loaded transformers model does through our attention what it does through its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from llmkit import UnsupportedModel
from llmkit.contracts import (
    AttentionPlan,
    AttentionSpec,
    BatchLayout,
    KVCacheSpec,
    KVMemory,
    LayerInputs,
    ModelInput,
    StepContext,
)

_LENGTHS = (11, 9)
"""Of the two sequences."""
_WINDOW = 4
"""What the config's window is shortened to, so that short sequences pass it."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Allowed norm of a difference over the norm of what is compared: rounding, far from a wrong result."""


class Runs(Protocol):
    """What the probe does with a model."""

    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        """Through our attention: what the model gives in the end, for each token or each sequence."""

    @property
    def window(self) -> int | None:
        """The window in its config, from which its own masks are made."""

    def run_own(self, ids: Tensor, window: int | None) -> Tensor:
        """One sequence through the model's own forward and eager attention, the config's window replaced
        by this one: what :meth:`run` gives."""


def probe(
    model: Runs,
    specs: Sequence[AttentionSpec],
    vocab_size: int,
    dtype: torch.dtype,
    device: str,
    *,
    avoid: int | None = None,
) -> None:
    """Run two short sequences apart, packed, and one of them the model's own way.

    ``avoid`` is a token that would change which tokens the model looks at, such as padding.
    Every window, the config's and those the layers passed, is shortened by the same amount, so that
    the sequences are longer.

    :raises UnsupportedModel: a layer does not call attention exactly once, or results differ.
    """
    specs, window = _shortened(specs, model.window)
    lengths = list(_LENGTHS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab_size, (sum(lengths),), generator=generator).to(device)
    if avoid is not None:
        ids[ids == avoid] = (avoid + 1) % vocab_size
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    packed = _run(model, specs, ids, positions, lengths)
    parts: list[Tensor] = []
    for piece, place in zip(torch.split(ids, lengths), torch.split(positions, lengths), strict=True):
        parts.append(_run(model, specs, piece, place, [len(piece)]))
    tolerance = _TOLERANCE[dtype]
    _compare(packed, torch.cat(parts), tolerance, "packed sequences differ from each on its own")
    own = _guarded(lambda: model.run_own(ids[: lengths[0]], window))
    _compare(parts[0], own, tolerance, "results differ from the model's own attention")


def _shortened(
    specs: Sequence[AttentionSpec], window: int | None
) -> tuple[Sequence[AttentionSpec], int | None]:
    """A layer's window that is not the config's stays as far from it as it was.

    :raises UnsupportedModel: one is so much shorter that this cannot be.
    """
    if window is None:
        return specs, None
    by = window - _WINDOW
    shortest = min((spec.window for spec in specs if spec.window is not None), default=window)
    if shortest <= by:
        raise UnsupportedModel(f"a layer calls attention with window {shortest}, its config has {window}")
    shorter = [spec if spec.window is None else replace(spec, window=spec.window - by) for spec in specs]
    return shorter, _WINDOW


def _run(
    model: Runs, specs: Sequence[AttentionSpec], ids: Tensor, positions: Tensor, lengths: list[int]
) -> Tensor:
    backend = _PackedAttention(specs, lengths)
    logits = _guarded(lambda: model.run(ModelInput(ids, positions), StepContext(backend, _NoPlan())))
    if backend.calls != list(range(len(specs))):
        raise UnsupportedModel(f"layers called attention in the order {backend.calls}, not once each in turn")
    return logits


def _guarded(run: Callable[[], Tensor]) -> Tensor:
    try:
        return run()
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise UnsupportedModel(f"its forward fails: {error}") from error


def _compare(ours: Tensor, theirs: Tensor, tolerance: float, complaint: str) -> None:
    error = float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))
    if not error <= tolerance:
        raise UnsupportedModel(f"{complaint} by {error:.1%} (allowed {tolerance:.1%})")


class _NoPlan:
    def update(self, layout: BatchLayout) -> None:
        """There is nothing to plan."""


class _PackedAttention:
    """Attention within each of a step's sequences, nothing cached; counts calls."""

    row_invariant = False
    graph_support: Any = "none"
    fused_rope = False

    def __init__(self, specs: Sequence[AttentionSpec], lengths: list[int]) -> None:
        self._specs = specs
        self._lengths = lengths
        self.calls: list[int] = []

    def kv_cache_spec(self, layer: int) -> KVCacheSpec:
        return KVCacheSpec("none", 1, 0, "none")

    def bind(self, memory: KVMemory) -> None:
        """There is no cache."""

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> AttentionPlan:
        return _NoPlan()

    def attend(self, inputs: LayerInputs, plan: AttentionPlan, out: Tensor) -> None:
        self.calls.append(inputs.layer)
        assert inputs.k is not None
        assert inputs.v is not None
        spec = self._specs[inputs.layer]
        pieces = zip(
            *(torch.split(x, self._lengths) for x in (inputs.q, inputs.k, inputs.v, out)),
            strict=True,
        )
        for q, k, v, result in pieces:
            result.copy_(_attend(spec, q.float(), k.float(), v.float()))


def _attend(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain attention over one sequence, ``[tokens, heads, size]`` each."""
    repeat = spec.num_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    distance = torch.arange(len(q), device=q.device)
    distance = distance[:, None] - distance[None, :]
    hidden = distance < 0 if spec.mask == "causal" else torch.zeros_like(distance, dtype=torch.bool)
    if spec.window is not None:
        hidden |= distance.abs() >= spec.window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


__all__ = ["Runs", "probe"]
