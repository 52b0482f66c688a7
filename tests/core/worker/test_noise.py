from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.worker.noise import stream_keys, uniforms

words = st.integers(0, 2**64 - 1)


def draw(seed: int, choice: int, positions: list[int]) -> np.ndarray:
    key = stream_keys(np.array([seed], np.uint64), np.array([choice], np.uint64))
    return uniforms(np.repeat(key, len(positions)), np.array(positions, np.uint64))


@given(seed=words, choice=st.integers(0, 127), position=st.integers(0, 1 << 20))
@settings(max_examples=50)
def test_a_draw_depends_on_its_own_key_and_position_alone(seed: int, choice: int, position: int) -> None:
    alone = draw(seed, choice, [position])[0]
    assert draw(seed, choice, [3, position, 9])[1] == alone
    assert 0 <= alone < 1


def test_draws_are_uniform_along_each_of_positions_choices_and_seeds() -> None:
    along_positions = draw(0, 0, list(range(20_000)))
    along_choices = np.array([draw(5, choice, [17])[0] for choice in range(4_000)])
    along_seeds = np.array([draw(seed, 0, [17])[0] for seed in range(4_000)])
    for draws in (along_positions, along_choices, along_seeds):
        counts = np.histogram(draws, bins=20, range=(0, 1))[0]
        expected = len(draws) / 20
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 50  # 19 degrees of freedom: one in 10,000 passes 50
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.05


def test_choices_of_one_seed_have_streams_of_their_own() -> None:
    streams = np.stack([draw(7, choice, list(range(1_000))) for choice in range(4)])
    correlations = np.corrcoef(streams) - np.eye(4)
    assert np.abs(correlations).max() < 0.15
