"""Presence, frequency and repetition penalties over the tokens a row has, never over its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

IntArray = np.ndarray[Any, np.dtype[np.int64]]


class TokenCounts:
    """The distinct tokens of one row and how often its output holds each; grows with the row.

    With ``prompt`` its tokens count as seen, with zero occurrences in the output.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        ids = np.unique(np.asarray([*prompt, *output], dtype=np.int64))
        self._place = {token: index for index, token in enumerate(ids.tolist())}
        self._ids = np.concatenate([ids, np.zeros(max(64, len(ids)), np.int64)])
        self._counts = np.zeros(len(self._ids), np.int64)
        for token in output:
            self._counts[self._place[token]] += 1

    @property
    def ids(self) -> IntArray:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> IntArray:
        """Occurrences in the output of each of :attr:`ids`."""
        return self._counts[: len(self._place)]

    def with_drafts(self, drafts: Sequence[int]) -> tuple[IntArray, IntArray]:
        """:attr:`ids` and :attr:`counts` as if ``drafts`` were in the output too."""
        if not drafts:
            return self.ids, self.counts
        fresh = [token for token in dict.fromkeys(drafts) if token not in self._place]
        ids = np.concatenate([self.ids, np.array(fresh, np.int64)])
        counts = np.concatenate([self.counts, np.zeros(len(fresh), np.int64)])
        new = {token: place for place, token in enumerate(fresh, start=len(self._place))}
        for token in drafts:
            counts[new[token] if token in new else self._place[token]] += 1
        return ids, counts

    def append(self, token: int) -> None:
        """The output got one more token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1


def penalize(
    logits: Tensor,
    rows: Sequence[int],
    tokens: Sequence[tuple[IntArray, IntArray]],
    repetition: IntArray | np.ndarray[Any, np.dtype[np.float32]],
    frequency: np.ndarray[Any, np.dtype[np.float32]],
    presence: np.ndarray[Any, np.dtype[np.float32]],
) -> None:
    """Change ``logits [rows, vocab]`` in place at each listed row's own tokens (ids and their counts).

    Repetition scales towards less likely (divides positive, multiplies negative values), then
    frequency is subtracted for each occurrence in the output and presence once if there is any.
    """
    lengths = [len(ids) for ids, _ in tokens]
    index = np.concatenate([ids + row * logits.shape[1] for row, (ids, _) in zip(rows, tokens, strict=True)])
    counts = np.concatenate([counts for _, counts in tokens])
    subtract = np.repeat(frequency, lengths) * counts + np.repeat(presence, lengths) * (counts > 0)
    factor = torch.from_numpy(np.repeat(repetition, lengths)).to(logits.device, torch.float32)
    where = torch.from_numpy(index).to(logits.device)
    flat = logits.view(-1)
    values = flat[where]
    values = torch.where(values > 0, values / factor, values * factor)
    flat[where] = values - torch.from_numpy(subtract).to(logits.device, torch.float32)
