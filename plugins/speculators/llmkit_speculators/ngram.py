"""Speculator ``ngram``, prompt lookup: what followed the last few tokens when they came before comes again.

For texts that copy from their prompt: edits, summaries, code, chats that quote. It needs no model.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from llmkit.contracts import DraftRequest

CANDIDATES = 16
"""Earlier places that are compared at most, the latest first."""
_NOWHERE = -1


class PromptLookup:
    """Owns an index for each request it was asked about and not told to forget."""

    def __init__(self, num_drafts: int, *, shortest: int, longest: int) -> None:
        """Propose up to ``num_drafts`` tokens where ``shortest`` to ``longest`` tokens came before."""
        self._num_drafts = num_drafts
        self._shortest = shortest
        self._longest = longest
        self._histories: dict[str, _History] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [self._propose(request) for request in requests]

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._histories.pop(request_id, None)

    def close(self) -> None:
        self._histories.clear()

    def _propose(self, request: DraftRequest) -> list[int]:
        history = self._histories.get(request.request_id)
        if history is None:
            history = _History(SuffixIndex(self._shortest, self._longest), self._num_drafts)
            self._histories[request.request_id] = history
        history.learn(request.token_ids, self._num_drafts)
        drafts = history.index.continuation(request.token_ids, min(request.most, history.length))
        history.drafts, history.drafted_at = list(drafts), len(request.token_ids)
        return drafts


class _History:
    """One request: its index, what was proposed last, and how long the next proposal may be."""

    __slots__ = ("drafted_at", "drafts", "index", "length")

    def __init__(self, index: SuffixIndex, length: int) -> None:
        self.index = index
        self.length = length
        self.drafts: list[int] = []
        self.drafted_at = 0

    def learn(self, tokens: Sequence[int], most: int) -> None:
        """Propose less where the first draft was wrong, more where all were right."""
        if not self.drafts:
            return
        came = tokens[self.drafted_at : self.drafted_at + len(self.drafts)]
        if list(came) == self.drafts:
            self.length = min(2 * self.length, most)
        elif came and came[0] != self.drafts[0]:
            self.length = max(self.length // 2, 1)


class SuffixIndex:
    """Finds the longest end of a growing sequence that came before: the hash chains of deflate.

    Eight bytes a token, and a constant number of operations for each token and each question.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._heads = array("i")  # hash of a run of `shortest` tokens -> where such a run last ended
        self._before = array("i")  # where one run ended -> where one with its hash had ended before it

    def continuation(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to ``most`` tokens that may follow; ``tokens`` is what it was at the last call, and more."""
        if len(tokens) <= self._shortest or most < 1:
            return []
        self._extend(tokens, len(tokens) - 1)
        end = self._best_end(tokens)
        if end == _NOWHERE:
            return []
        # A match less than `most` tokens back runs into itself: the text repeats with that period.
        start = end + 1
        period = len(tokens) - start
        if most <= period:
            return list(tokens[start : start + most])
        return [tokens[start + offset % period] for offset in range(most)]

    def _extend(self, tokens: Sequence[int], stop: int) -> None:
        """Index the runs that end before ``stop``."""
        if stop > len(self._heads):
            self._heads = array("i", [_NOWHERE]) * (1 << max(stop.bit_length(), 8))
            self._before = array("i")
        heads, before, width, mask = self._heads, self._before, self._shortest, len(self._heads) - 1
        for end in range(len(before), stop):
            if end < width - 1:
                before.append(_NOWHERE)
                continue
            bucket = hash(tuple(tokens[end - width + 1 : end + 1])) & mask
            before.append(heads[bucket])
            heads[bucket] = end

    def _best_end(self, tokens: Sequence[int]) -> int:
        """Where the longest match ends, the latest of equals."""
        bucket = hash(tuple(tokens[-self._shortest :])) & (len(self._heads) - 1)
        end = self._heads[bucket]
        best, best_length = _NOWHERE, self._shortest - 1
        for _ in range(CANDIDATES):
            if end == _NOWHERE:
                break
            length = self._matching(tokens, end)
            if length > best_length:
                best, best_length = end, length
                if length == self._longest:
                    break
            end = self._before[end]
        return best

    def _matching(self, tokens: Sequence[int], end: int) -> int:
        """How many tokens up to ``end`` are those that ``tokens`` end with, ``longest`` at most."""
        last = len(tokens) - 1
        for length in range(min(self._longest, end + 1)):
            if tokens[end - length] != tokens[last - length]:
                return length
        return min(self._longest, end + 1)
