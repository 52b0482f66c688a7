from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.worker.penalties import TokenCounts

ids = st.lists(st.integers(0, 300), max_size=200)


@given(prompt=ids, before=ids, after=ids)
@settings(max_examples=50)
def test_counts_that_grew_equal_counts_made_at_once(
    prompt: list[int], before: list[int], after: list[int]
) -> None:
    """A row that was preempted and comes again is made from all its tokens at once."""
    grown = TokenCounts(prompt, before)
    for token in after:
        grown.append(token)
    made = TokenCounts(prompt, before + after)
    assert as_dict(grown) == as_dict(made)
    output = before + after
    assert as_dict(made) == {token: output.count(token) for token in {*prompt, *output}}


def as_dict(counts: TokenCounts) -> dict[int, int]:
    assert len(np.unique(counts.ids)) == len(counts.ids)
    return dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
