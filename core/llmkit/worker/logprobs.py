"""Logprobs of the raw distribution: what the model said before anything was done to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llmkit.events import PositionLogprobs, TokenLogprob
from llmkit.types import MAX_LOGPROBS

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def position_logprobs(logits: Tensor, tokens: Sequence[int], wanted: Sequence[int]) -> list[PositionLogprobs]:
    """For each row of untouched ``logits [rows, vocab]``: its sampled token and its best ``wanted``.

    Ranks count the strictly likelier tokens; equal alternatives come in order of their ids. The
    same number of candidates is taken for every row, so that a row's answer depends on no other; a row of a
    beam search, which may want more, is looked at by itself.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    picked = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    values = logprobs.gather(1, picked)
    ranks = (logprobs > values).sum(dim=1) + 1
    columns = [values.squeeze(1).clamp(min=LOWEST).tolist(), ranks.tolist()]
    best: list[list[tuple[float, int]]] = [[] for _ in tokens]
    if any(wanted):
        top = logprobs.topk(min(MAX_LOGPROBS, logits.shape[1]), dim=1)
        pairs = zip(top.values.clamp(min=LOWEST).tolist(), top.indices.tolist(), strict=True)
        best = [_in_order(v, i) for v, i in pairs]
    for row in (row for row, count in enumerate(wanted) if count > MAX_LOGPROBS):
        own = logprobs[row].topk(min(wanted[row], logits.shape[1]))
        best[row] = _in_order(own.values.clamp(min=LOWEST).tolist(), own.indices.tolist())
    return [
        PositionLogprobs(
            TokenLogprob(token, value, rank),
            tuple(TokenLogprob(i, v, place) for place, (v, i) in enumerate(row[:count], start=1)),
        )
        for token, value, rank, row, count in zip(tokens, *columns, best, wanted, strict=True)
    ]


def _in_order(values: Sequence[float], indices: Sequence[int]) -> list[tuple[float, int]]:
    """Best first, equals by their ids."""
    return sorted(zip(values, indices, strict=True), key=lambda pair: (-pair[0], pair[1]))
