"""From logits to token ids, for a whole batch; a row gets only the work it asks for.

A row's token is a function of its own logits, parameters and (seed, choice, position): every
operation here treats rows apart, bit for bit. Order: what ``edits.py`` does to the logits, grammar
mask; then temperature, min-p, top-k, top-p. A row behind draft tokens is sampled as if they were its
output, so that what it gives is what the request would have got without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmkit.events import PositionLogprobs
from llmkit.messages import NOTHING_ALLOWED
from llmkit.worker import sampling_state as need
from llmkit.worker.edits import edit
from llmkit.worker.logit_rows import LogitRows
from llmkit.worker.logprobs import position_logprobs
from llmkit.worker.noise import uniforms
from llmkit.worker.sampling_state import SamplingState
from llmkit.worker.token_masks import TokenMasks

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float32]]

_SEGMENT = 128
"""Tokens a segment of the two-level search for a sample."""
_CANDIDATES = 256
"""How many of the likeliest tokens top-p and top-k look at before they look at all."""
_PIECE = 1 << 20
"""Logits that are drawn from at a time: temporaries are a few times as large."""
_IMPOSSIBLE = -1
"""In place of a token: the row allows none."""


@dataclass(slots=True)
class Samples:
    """One token a logits row; ``logprobs[i]`` is None where the row did not ask."""

    tokens: list[int]
    """Of a row in ``failed`` it is 0 and means nothing."""
    logprobs: list[PositionLogprobs | None] | None
    failed: dict[int, str] = field(default_factory=dict)
    """Rows whose logits allow no token, and why; they do their neighbours no harm."""


class Sampler:
    """Samples rows whose parameters are in ``state``.

    ``processed``: logprobs are of the distribution that tokens are drawn from, not of the model's own.
    """

    def __init__(self, state: SamplingState, *, processed: bool = False) -> None:
        self._state = state
        self._processed = processed

    def sample(self, logits: Tensor, rows: LogitRows, masks: TokenMasks | None) -> Samples:
        """A token for each row of ``logits`` (float32 [rows, vocab], changed in place)."""
        slots = rows.slots
        needs = self._state.needs[slots]
        every = int(np.bitwise_or.reduce(needs))
        if not every and masks is None:
            return _samples(logits, _best(logits))
        asked = np.flatnonzero(needs & need.LOGPROBS)
        where = torch.from_numpy(asked).to(logits.device)
        shown = logits[where] if asked.size and not self._processed else None
        broken = edit(logits, rows, self._state, needs)
        if masks is not None:
            masks.apply(logits)
        samples = _samples(logits, self._choose(logits, slots, rows.positions, needs))
        samples.failed.update(broken)
        if not asked.size:
            return samples
        if shown is None:
            shown = self._drawn_from(logits[where], slots[asked], needs[asked])
        picked = [samples.tokens[row] for row in asked.tolist()]
        values = position_logprobs(shown, picked, self._state.num_logprobs[slots[asked]].tolist())
        samples.logprobs = [None] * len(samples.tokens)
        for row, value in zip(asked.tolist(), values, strict=True):
            if row not in samples.failed:
                samples.logprobs[row] = value
        return samples

    def _drawn_from(self, logits: Tensor, slots: IntArray, needs: Any) -> Tensor:
        """Logits, up to a constant a row, of the distributions that edited ``logits`` are drawn from.

        A greedy row's is the edited one itself: it has no temperature and leaves nothing out.
        """
        random = np.flatnonzero(needs & need.RANDOM)
        for some in _pieces(random, logits.shape[1]):
            where = torch.from_numpy(some).to(logits.device)
            logits[where] = self._probabilities(logits[where], slots[some], needs[some]).log()
        return logits

    def _choose(self, logits: Tensor, slots: IntArray, positions: IntArray, needs: Any) -> Tensor:
        """int64 [rows]: a token each, or ``_IMPOSSIBLE``."""
        random = np.flatnonzero(needs & need.RANDOM)
        if random.size == 0:
            return _best(logits)
        tokens = (
            _best(logits)
            if random.size < len(slots)
            else torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        )
        for rows in _pieces(random, logits.shape[1]):
            where = torch.from_numpy(rows).to(logits.device)
            tokens[where] = self._draw(logits[where], slots[rows], positions[rows], needs[rows])
        return tokens

    def _draw(self, logits: Tensor, slots: IntArray, positions: IntArray, needs: Any) -> Tensor:
        """:meth:`_choose` for rows that are all random; ``logits`` are scratch."""
        probs = self._probabilities(logits, slots, needs)
        draws = uniforms(self._state.key[slots], positions.astype(np.uint64))
        return _invert(probs, torch.from_numpy(draws).to(logits.device))

    def _probabilities(self, logits: Tensor, slots: IntArray, needs: Any) -> Tensor:
        """What random rows are drawn from, not normed after tokens were left out; ``logits`` are scratch."""
        state, device = self._state, logits.device
        logits /= torch.from_numpy(state.temperature[slots]).to(device).unsqueeze(1)
        probs = torch.softmax(logits, dim=-1)
        for bit, values, keep in (
            (need.MIN_P, state.min_p, _keep_min_p),
            (need.TOP_K, state.top_k, _keep_top_k),
            (need.TOP_P, state.top_p, _keep_top_p),
        ):
            which = np.flatnonzero(needs & bit)
            if which.size == 0:
                continue
            rows = torch.from_numpy(which).to(device)
            own = probs if which.size == len(slots) else probs[rows]
            floor = keep(own, values[slots[which]])
            own = torch.where(own >= floor.unsqueeze(1), own, 0.0)
            if which.size == len(slots):
                probs = own
            else:
                probs[rows] = own
        return probs


def _pieces(rows: IntArray, vocab: int) -> Iterator[IntArray]:
    """Rows that are drawn together; what a row gets does not depend on how they are cut."""
    step = max(1, _PIECE // vocab)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _best(logits: Tensor) -> Tensor:
    """int64 [rows]: each row's likeliest token, the first of equals, or ``_IMPOSSIBLE``."""
    if logits.device.type == "cpu":  # numpy scans a row five times faster
        best = torch.from_numpy(logits.numpy().argmax(axis=1))
    else:
        best = logits.argmax(dim=1)
    finite = torch.isfinite(logits.gather(1, best.unsqueeze(1))).squeeze(1)
    return torch.where(finite, best, _IMPOSSIBLE)


def _samples(logits: Tensor, tokens: Tensor) -> Samples:
    """Tokens as a list, and what is wrong with the ``logits`` of rows that have none."""
    picked: list[int] = tokens.tolist()
    failed = {row: _why(logits[row]) for row, token in enumerate(picked) if token == _IMPOSSIBLE}
    return Samples([0 if token == _IMPOSSIBLE else token for token in picked], None, failed)


def _why(logits: Tensor) -> str:
    if bool((logits == -torch.inf).all()):
        return NOTHING_ALLOWED
    return "no token can be sampled: the model's logits are not finite"


def _keep_min_p(probs: Tensor, min_p: Any) -> Tensor:
    """The probability below which each row's tokens go: a share of its likeliest's."""
    return probs.amax(dim=1) * torch.from_numpy(min_p).to(probs.device)


def _keep_top_k(probs: Tensor, top_k: Any) -> Tensor:
    """The probability of each row's k-th likeliest token; its equals stay too."""
    floor = torch.empty(len(probs), dtype=probs.dtype, device=probs.device)
    small = top_k <= _CANDIDATES
    for group in (np.flatnonzero(small), np.flatnonzero(~small)):
        if group.size:
            rows, ks = torch.from_numpy(group).to(probs.device), torch.from_numpy(top_k[group] - 1)
            best = probs[rows].topk(int(top_k[group].max()), dim=1).values
            floor[rows] = best.gather(1, ks.to(probs.device).unsqueeze(1)).squeeze(1)
    return floor


def _keep_top_p(probs: Tensor, top_p: Any) -> Tensor:
    """The probability of the last token of each row's smallest set that holds ``top_p`` of its mass.

    Looks at a few candidates first, and at all only in rows that need more.
    """
    goal = torch.from_numpy(top_p).to(probs.device) * _segmented(probs)[1][:, -1]
    best = probs.topk(min(_CANDIDATES, probs.shape[1]), dim=1).values
    mass = best.cumsum(dim=1, dtype=torch.float64)
    place = (mass < goal.unsqueeze(1)).sum(dim=1).clamp(max=best.shape[1] - 1)
    floor = best.gather(1, place.unsqueeze(1)).squeeze(1)
    for row in torch.nonzero(mass[:, -1] < goal).flatten().tolist():
        floor[row] = _floor_of_mass(probs[row].cpu().numpy(), float(goal[row]))
    return floor


def _floor_of_mass(probs: FloatArray, goal: float) -> float:
    """The largest value of a row for which it and all above it add up to ``goal``.

    Positive floats are ordered as their bits are: the sums of buckets of equal upper bits tell the one
    bucket that is worth sorting.
    """
    buckets = probs.view(np.int32) >> 16
    mass = np.bincount(buckets, weights=probs)[::-1].cumsum()
    above = int((mass < goal).sum())
    if above == len(mass):  # sums round apart
        return 0.0
    inside = np.sort(probs[buckets == len(mass) - 1 - above])[::-1]
    before = mass[above - 1] if above else 0.0
    place = int((before + inside.cumsum(dtype=np.float64) < goal).sum())
    return float(inside[min(place, len(inside) - 1)])


def _invert(probs: Tensor, draws: Tensor) -> Tensor:
    """The token at which each row's cumulated probability passes ``draws [rows]`` of its total.

    A token of probability 0 is never taken; a row with no other, or with one that is no number, gives
    ``_IMPOSSIBLE``.
    """
    segments, ends = _segmented(probs)
    target = draws * ends[:, -1]
    chosen = (ends <= target.unsqueeze(1)).sum(dim=1).clamp(max=ends.shape[1] - 1)
    every = torch.arange(len(probs), device=probs.device)
    start = torch.where(chosen > 0, ends[every, chosen - 1], 0.0)
    inner = segments[every, chosen].cumsum(dim=1, dtype=torch.float64)
    passed = (inner <= (target - start).unsqueeze(1)).sum(dim=1)
    # Sums of a segment and within it round apart: never run past its last possible token.
    last = (inner < inner[:, -1:]).sum(dim=1)
    tokens = chosen * _SEGMENT + torch.minimum(passed, last)
    return torch.where(ends[:, -1] > 0, tokens, _IMPOSSIBLE)


def _segmented(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Rows cut into segments, and the running sums of those in fp64 (the last one is the total).

    Ten times cheaper than a running sum over the vocabulary. A plain ``sum`` would not do: torch
    cuts a single long row among its threads, so that a row alone rounds otherwise than in a batch.
    """
    vocab = probs.shape[1]
    if vocab % _SEGMENT:
        probs = torch.nn.functional.pad(probs, (0, -vocab % _SEGMENT))
    segments = probs.view(len(probs), -1, _SEGMENT)
    return segments, segments.sum(dim=2).cumsum(dim=1, dtype=torch.float64)
