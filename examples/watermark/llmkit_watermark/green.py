"""Which tokens are green after which, and whether a text has more of them than chance gives.

After Kirchenbauer et al., A Watermark for Large Language Models (2023): the token before chooses a
part of the vocabulary, whose logits are raised; who knows the key counts how many tokens are in theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Ids = np.ndarray[Any, np.dtype[Any]]


def greens(before: Ids, tokens: Ids, key: int, gamma: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each of ``tokens`` is green after its token of ``before``; arrays that broadcast together."""
    seeds = _mix(before.astype(np.uint64) * _STEP + np.uint64(key & (2**64 - 1)))
    return _mix(seeds + tokens.astype(np.uint64) * _STEP) < np.uint64(int(gamma * 2**64))


def detect(token_ids: Sequence[int], key: int, gamma: float = 0.25) -> float:
    """How many standard deviations more green tokens the text has than chance gives; above 4 it is marked.

    A pair of tokens that comes again says nothing new, and counts once.
    """
    pairs = np.unique(np.stack([np.asarray(token_ids[:-1]), np.asarray(token_ids[1:])]), axis=1)
    if pairs.shape[1] == 0:
        return 0.0
    found = int(greens(pairs[0], pairs[1], key, gamma).sum())
    count = pairs.shape[1]
    return float((found - gamma * count) / np.sqrt(count * gamma * (1 - gamma)))


def _mix(x: Ids) -> Ids:
    """The finalizer of splitmix64; arrays of uint64 wrap silently, which is what it wants."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
