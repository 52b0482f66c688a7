"""What counts and measures between two scrapes; made into families when scraped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

Labels = Mapping[str, str]


class Histogram:
    """Owns the counts of values, a bucket each; several at once cost what one does."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, prefix: str, labels: Labels) -> HistogramMetricFamily:
        family = HistogramMetricFamily(prefix + self._name, self._help, labels=list(labels))
        self.fill(family, list(labels.values()))
        return family

    def fill(self, family: HistogramMetricFamily, values: Sequence[str]) -> None:
        """Add these counts under the labels' values."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(values, buckets, self._sum)


class Counters:
    """Owns a count for every combination of labels that came."""

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *values: str, count: int = 1) -> None:
        """With a count of 0 it is shown from the start."""
        self._counts[values] = self._counts.get(values, 0) + count

    def family(self, prefix: str, labels: Labels) -> CounterMetricFamily:
        family = CounterMetricFamily(prefix + self._name, self._help, labels=[*labels, *self._labels])
        for values, count in self._counts.items():
            family.add_metric([*labels.values(), *values], count)
        return family
