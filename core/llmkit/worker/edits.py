"""What requests do to their logits before a token is drawn.

First what shifts them: ``logit_bias``, penalties, processors of plugins. Then what forbids tokens, so that
nothing revives one: ends below ``min_tokens``, all but ``allowed_token_ids``, what completes ``bad_words``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmkit.worker import sampling_state as need
from llmkit.worker.logit_rows import LogitRows
from llmkit.worker.penalties import penalize
from llmkit.worker.sampling_state import SamplingState

Needs = np.ndarray[Any, np.dtype[np.uint32]]


def edit(logits: Tensor, rows: LogitRows, state: SamplingState, needs: Needs) -> dict[int, str]:
    """Change ``logits`` (float32 [rows, vocab]) in place; ``needs`` [rows] says which row asks for what.

    Gives the rows that cannot be sampled because a plugin failed, and why.
    """
    every = int(np.bitwise_or.reduce(needs))
    failed: dict[int, str] = {}
    for bit, change in _SHIFTS:
        if every & bit:
            change(logits, rows, state, np.flatnonzero(needs & bit))
    if every & need.PROCESSORS:
        users = {
            row: state.request_ids[rows.slots[row]]
            for row in np.flatnonzero(needs & need.PROCESSORS).tolist()
        }
        failed = state.processors.apply(logits, rows, users)
    for bit, forbid in _BANS:
        if every & bit:
            forbid(logits, rows, state, np.flatnonzero(needs & bit))
    return failed


def _add_bias(logits: Tensor, rows: LogitRows, state: SamplingState, which: Any) -> None:
    for row in which.tolist():
        bias = state.bias[rows.slots[row]]
        if bias is not None:
            logits[row, torch.from_numpy(bias.ids)] += torch.from_numpy(bias.amounts).to(logits.device)


def _penalize(logits: Tensor, rows: LogitRows, state: SamplingState, which: Any) -> None:
    slots = rows.slots[which]
    counts = []
    for row, slot in zip(which.tolist(), slots.tolist(), strict=True):
        own = state.counts[slot]
        assert own is not None, "a row that is penalized has its tokens counted"
        counts.append(own.with_drafts(rows.drafts(row).tolist()))
    penalize(
        logits,
        which.tolist(),
        counts,
        state.repetition[slots],
        state.frequency[slots],
        state.presence[slots],
    )


def _hold_back_ends(logits: Tensor, rows: LogitRows, state: SamplingState, which: Any) -> None:
    slots = rows.slots[which]
    for row, slot in zip(which.tolist(), slots.tolist(), strict=True):
        if rows.positions[row] < state.free_from[slot]:
            logits[row, torch.from_numpy(state.end_ids[slot])] = -torch.inf


def _allow_only(logits: Tensor, rows: LogitRows, state: SamplingState, which: Any) -> None:
    for row in which.tolist():
        ids = torch.from_numpy(state.allowed[rows.slots[row]])
        kept = logits[row, ids]
        logits[row] = -torch.inf
        logits[row, ids] = kept


def _forbid_bad_words(logits: Tensor, rows: LogitRows, state: SamplingState, which: Any) -> None:
    for row in which.tolist():
        slot = rows.slots[row]
        words = state.bad_words[slot]
        assert words is not None, "a row with bad words has them"
        forbidden = words.forbidden(rows.before(row)[state.num_prompt[slot] :])
        logits[row, torch.from_numpy(forbidden)] = -torch.inf


Change = Callable[[Tensor, LogitRows, SamplingState, Any], None]
_SHIFTS: tuple[tuple[int, Change], ...] = ((need.BIAS, _add_bias), (need.PENALTIES, _penalize))
_BANS: tuple[tuple[int, Change], ...] = (
    (need.MIN_TOKENS, _hold_back_ends),
    (need.ALLOWED, _allow_only),
    (need.BAD_WORDS, _forbid_bad_words),
)
