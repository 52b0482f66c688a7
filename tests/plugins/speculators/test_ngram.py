"""Prompt lookup: the longest end that came before, found with a bounded effort."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import DraftRequest, SamplingParams
from llmkit_speculators.ngram import CANDIDATES, PromptLookup, SuffixIndex

NOW = DraftRequest("r", [], num_prompt=1, most=8, params=SamplingParams(), seed=0, choice=0)


def continuation(tokens: list[int], most: int = 4, *, shortest: int = 2, longest: int = 5) -> list[int]:
    return SuffixIndex(shortest, longest).continuation(tokens, most)


def plain_end(tokens: list[int], shortest: int, longest: int) -> int | None:
    """Where the longest match ends, by looking everywhere; the latest of equals."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 2, length - 2, -1):
            if tokens[end - length + 1 : end + 1] == tokens[-length:]:
                return end
    return None


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1], id="copies-what-followed"),
        pytest.param([1, 2, 7, 8, 9, 1, 2, 5, 6, 9, 1, 2], [5, 6, 9, 1], id="the-longer-match"),
        pytest.param([1, 2, 3, 0, 1, 2, 4, 0, 0, 1, 2], [4, 0, 0, 1], id="the-latest-of-equals"),
        pytest.param([7, 1, 2, 1, 2], [1, 2, 1, 2], id="a-period"),
        pytest.param([3, 3, 3], [3, 3, 3, 3], id="one-token-again-and-again"),
        pytest.param([1, 2, 3, 4], [], id="nothing-came-before"),
        pytest.param([1, 2, 3, 9, 2], [], id="too-short-a-match"),
        pytest.param([1], [], id="too-short-a-text"),
        pytest.param([], [], id="no-text"),
    ],
)
def test_what_followed_before_follows_again(tokens: list[int], expected: list[int]) -> None:
    assert continuation(tokens) == expected


def test_no_more_than_asked_for() -> None:
    assert continuation([1, 2, 3, 4, 5, 1, 2], 2) == [3, 4]
    assert continuation([1, 2, 3, 4, 5, 1, 2], 0) == []


@given(st.lists(st.integers(0, 3), max_size=14), st.integers(1, 3), st.integers(0, 4))
@settings(max_examples=200)
def test_the_longest_end_is_found_wherever_it_came(tokens: list[int], shortest: int, more: int) -> None:
    """With so few tokens no chain is longer than what is compared."""
    assert len(tokens) <= CANDIDATES
    drafts = continuation(tokens, 3, shortest=shortest, longest=shortest + more)
    end = plain_end(tokens, shortest, shortest + more)
    if end is None:
        assert drafts == []
        return
    text = tokens[end + 1 :]
    assert drafts == [text[i % len(text)] for i in range(3)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=400), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_growing_by_pieces_is_as_good_as_all_at_once(tokens: list[int], source: random.Random) -> None:
    index = SuffixIndex(2, 6)
    known = 0
    while known < len(tokens):
        known = min(known + source.randrange(1, 40), len(tokens))
        assert index.continuation(tokens[:known], 5) == continuation(tokens[:known], 5, longest=6)


def test_the_effort_is_bounded_however_often_an_end_came() -> None:
    compared = 0

    class Counted(SuffixIndex):
        def _matching(self, tokens, end):
            nonlocal compared
            compared += 1
            return super()._matching(tokens, end)

    tokens = [token for number in range(5000) for token in (1, 2, number + 10)] + [1, 2]
    assert Counted(2, 8).continuation(tokens, 3) == [5009, 1, 2]
    assert 0 < compared <= CANDIDATES


def propose(lookup: PromptLookup, tokens: list[int], **changes: object) -> list[int]:
    (drafts,) = lookup.propose([replace(NOW, token_ids=tokens, **changes)])
    return drafts


def test_less_is_proposed_after_a_miss_and_more_after_a_hit() -> None:
    lookup = PromptLookup(4, shortest=2, longest=5)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert propose(lookup, text) == [3, 4, 5, 6]
    text += [9, 1, 2]  # not 3: all refused
    assert len(propose(lookup, text)) == 2
    text += [9, 1, 2]  # all right
    assert len(propose(lookup, text)) == 4


def test_what_is_forgotten_is_learnt_again() -> None:
    lookup = PromptLookup(4, shortest=2, longest=5)
    assert propose(lookup, [1, 2, 3, 4, 1, 2]) == [3, 4, 1, 2]
    lookup.forget(["r", "nobody"])
    assert propose(lookup, [5, 6, 7, 8, 5, 6]) == [7, 8, 5, 6]
    lookup.close()
    lookup.close()
