"""Token sequences that an answer may not complete: which tokens they forbid next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]


class BadWords:
    """The sequences of one request, by their last token but one, so that a step looks at few of them."""

    def __init__(self, sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
        inside = [tuple(sequence) for sequence in sequences if sequence and sequence[-1] < vocab_size]
        self._alone = np.unique(np.array([s[0] for s in inside if len(s) == 1], np.int64))
        self._longest = max((len(sequence) for sequence in inside), default=1) - 1
        self._after: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        for sequence in inside:
            if len(sequence) > 1:
                self._after[sequence[-2]].append((sequence[:-1], sequence[-1]))

    def forbidden(self, output: Sequence[int] | np.ndarray[Any, Any]) -> IntArray:
        """Tokens that would complete a sequence whose beginning ends ``output``; maybe repeated."""
        if not self._after or not len(output):
            return self._alone
        tail = tuple(int(token) for token in output[max(0, len(output) - self._longest) :])
        completing = [
            last for before, last in self._after.get(tail[-1], ()) if tail[-len(before) :] == before
        ]
        return np.concatenate([self._alone, np.array(completing, np.int64)]) if completing else self._alone
