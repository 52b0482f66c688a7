"""Figures of measurements: spreads, whatever the number of values."""

from __future__ import annotations

import random

import numpy as np
import pytest

from llmkit_cli.bench.figures import spread
from llmkit_cli.bench.load import Run, Sample
from llmkit_cli.bench.report import summarize


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 99, 100, 101, 1000])
def test_percentiles_are_numpys(count: int) -> None:
    rng = random.Random(count)
    values = [rng.expovariate(1.0) for _ in range(count)]
    found = spread(values)
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["median"] == pytest.approx(np.median(values))
    assert found["p90"] == pytest.approx(np.percentile(values, 90))
    assert found["p99"] == pytest.approx(np.percentile(values, 99))
    assert found["max"] == max(values)


def test_one_slow_request_of_a_few_shows_in_the_99th_percentile() -> None:
    samples = [Sample(1, 1, first_token_s=0.01, total_s=0.01) for _ in range(9)]
    samples.append(Sample(1, 1, first_token_s=1.0, total_s=1.0))
    figures = summarize(Run(samples, wall_s=1.0))
    assert figures["ttft_ms"]["p99"] == pytest.approx(np.percentile([10.0] * 9 + [1000.0], 99))
    assert figures["tpot_ms"] is None
