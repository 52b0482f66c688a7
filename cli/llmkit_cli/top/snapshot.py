"""What one scrape of ``/metrics`` says, whatever prefix its names have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from llmkit.errors import LlmkitError

MARK = ":num_requests_running"
"""Behind the prefix: every server that this view is for has it."""


@dataclass(slots=True)
class Snapshot:
    """Names are without the prefix; series of several models and engines are taken together."""

    at_s: float
    """When it was taken, by the caller's clock."""
    models: set[str] = field(default_factory=set)
    series: dict[str, list[float]] = field(default_factory=dict)
    """Of counters and gauges, the sums of histograms among them."""
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """Histogram -> upper bound -> how many values are up to it."""
    asleep: bool = False

    def total(self, name: str) -> float:
        """0 where the server has no such metric."""
        return sum(self.series.get(name, ()))

    def mean(self, *names: str) -> float | None:
        """Of the first that the server has; None: of none."""
        for name in names:
            if values := self.series.get(name):
                return sum(values) / len(values)
        return None


def read(text: str, at_s: float) -> Snapshot:
    """:raises LlmkitError: they are no metrics, or not those of a server with a model."""
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError) as error:
        raise LlmkitError(f"what it says is not in Prometheus' text format ({error})") from error
    marked = next((family.name for family in families if family.name.endswith(MARK)), None)
    if marked is None:
        raise LlmkitError("it has no metrics of a model: it is still starting, or is another kind of server")
    prefix = marked.removesuffix(MARK) + ":"
    snapshot = Snapshot(at_s)
    for sample in (sample for family in families for sample in family.samples):
        if sample.name.startswith(prefix):
            _take(snapshot, sample.name.removeprefix(prefix), sample.labels, sample.value)
    return snapshot


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """As PromQL's ``histogram_quantile``: values are spread evenly within their bucket.

    :return: None without values; beyond the last bound that bound, for nothing else is known.
    """
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    wanted, low, below = share * total, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def _take(snapshot: Snapshot, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "num_requests_running" and "model_name" in labels:
        snapshot.models.add(labels["model_name"])
    if name == "engine_sleep_state" and labels.get("sleep_state") != "awake" and value:
        snapshot.asleep = True
    if name.endswith("_bucket"):
        counts = snapshot.buckets.setdefault(name.removesuffix("_bucket"), {})
        bound = float(labels["le"])
        counts[bound] = counts.get(bound, 0.0) + value
    else:
        snapshot.series.setdefault(name, []).append(value)
