"""What Prometheus scrapes, under the names that dashboards in this field know.

Nothing here runs per token: the engine counts anyway and sends its counters with each step, and a
request is looked at once, when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llmkit import EngineError
from llmkit.contracts import Services
from llmkit_observability.engine import EngineMetrics
from llmkit_observability.http import HttpMetrics
from llmkit_observability.requests import RequestMetrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
ENGINE = "0"
"""There is one behind a front."""


def router(services: Services) -> APIRouter:
    """``/metrics`` over a registry of its own, so that two servers may share a process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exported(services))
    metrics = APIRouter(tags=["metrics"])

    @metrics.get("/metrics", response_model=None)
    async def scrape() -> Response:
        """In Prometheus' text format, which every scraper reads; OpenMetrics would write no colons."""
        return Response(generate_latest(registry), headers={"Content-Type": TEXT})

    return metrics


class Exported(Collector):
    """All of them. Those of a model carry its name, and begin once it is known."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._prefix = services.config.observability.metrics_prefix + ":"
        self._engine = EngineMetrics(services)
        self._requests = RequestMetrics()
        self._http = HttpMetrics()
        services.observe(self._requests.ended)
        services.observe_steps(self._engine.step)
        services.observe_http(self._http.ended)

    def collect(self) -> Iterator[Metric]:
        yield from self._http.collect(self._prefix)
        try:
            labels = {"model_name": self._services.model.names[0], "engine": ENGINE}
        except EngineError:
            return  # it is being looked for
        yield from self._engine.collect(self._prefix, labels)
        yield from self._requests.collect(self._prefix, labels)
