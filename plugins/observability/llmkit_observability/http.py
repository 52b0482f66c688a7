"""HTTP requests by route, and refusals by reason."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from llmkit.contracts import HttpRecord
from llmkit_observability.instruments import Counters, Histogram

CLIENT_LEFT = 499
"""No refusal: nobody was there any more."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_DURATION = "http_request_duration_seconds"
_DURATION_HELP = "From an HTTP request's head to the last byte of its answer."


class HttpMetrics:
    """Owns them. They carry no model: a server that has none yet answers too."""

    def __init__(self) -> None:
        self._requests = Counters(
            "http_requests",
            "HTTP requests by method, route (`none`: no route was reached) and class of status.",
            ["method", "handler", "status"],
        )
        self._refused = Counters(
            "requests_refused",
            "HTTP requests that were refused, by status and the error's code: wrong, without a key, beyond "
            "the queue (429), not ready (503).",
            ["status", "code"],
        )
        for status in ("400", "401", "404", "413", "429", "503"):
            self._refused.add(status, "", count=0)
        self._durations: dict[tuple[str, str], Histogram] = {}

    def ended(self, record: HttpRecord) -> None:
        route = (record.method or "none", record.route or "none")
        self._requests.add(*route, f"{record.status // 100}xx")
        if route not in self._durations:
            self._durations[route] = Histogram(_DURATION, _DURATION_HELP, _SECONDS)
        self._durations[route].add(record.duration_s)
        if _is_refusal(record.status):
            self._refused.add(str(record.status), record.code)

    def collect(self, prefix: str) -> Iterator[Metric]:
        """Those by route have the names that every exporter gives them."""
        yield self._refused.family(prefix, {})
        yield self._requests.family("", {})
        durations = HistogramMetricFamily(_DURATION, _DURATION_HELP, labels=["method", "handler"])
        for route, histogram in self._durations.items():
            histogram.fill(durations, route)
        yield durations


def _is_refusal(status: int) -> bool:
    return status == 503 or (400 <= status < 500 and status != CLIENT_LEFT)
