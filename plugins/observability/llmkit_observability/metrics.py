"""What Prometheus scrapes: the engine's counters as they are, and histograms of ended requests.

Nothing here runs per token: the engine counts anyway and sends its counters with each step, and a
request is looked at once, when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmkit.contracts import FinishReason, RequestRecord, Services

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.8, 2, 5)


def router(services: Services) -> APIRouter:
    """``/metrics`` over a registry of its own, so that two servers may share a process."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(services))
    requests = RequestMetrics(registry)
    services.observe(requests.add)
    services.observe_refusals(requests.refused)
    metrics = APIRouter(tags=["metrics"])

    @metrics.get("/metrics", response_model=None)
    async def scrape(request: Request) -> Response:
        """Prometheus text format, or OpenMetrics where the scraper prefers it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return metrics


class EngineCollector(Collector):
    """The engine's own counters, read when scraped."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        stats = self._services.stats()
        usage = stats.blocks_held / stats.blocks_total if stats.blocks_total else 0.0
        for name, help_text, gauge in (
            ("requests_running", "Requests that hold KV blocks.", stats.running),
            ("requests_waiting", "Requests in the queue.", stats.waiting),
            ("kv_blocks_total", "Blocks of the KV cache.", stats.blocks_total),
            ("kv_blocks_held", "KV blocks that a request holds.", stats.blocks_held),
            ("kv_cache_usage_ratio", "Share of KV blocks that a request holds, 0 to 1.", usage),
        ):
            yield GaugeMetricFamily(f"llmkit_{name}", help_text, value=gauge)
        for name, help_text, count in (
            ("engine_steps", "Steps of the engine.", stats.steps),
            ("prompt_tokens", "Prompt tokens computed, without those from the cache.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("preemptions", "Requests set back to make room for others.", stats.preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
            ("draft_tokens", "Tokens that a speculator proposed and the model verified.", stats.draft_tokens),
            (
                "accepted_tokens",
                "Of those, the ones the model would have sampled too.",
                stats.accepted_tokens,
            ),
            ("forced_tokens", "Tokens that a grammar left no choice about.", stats.forced_tokens),
            ("kv_offload_queries", "Prompt tokens looked up in the KV connector.", stats.offload_queries),
            ("kv_offload_hits", "Prompt tokens loaded from the KV connector.", stats.offload_hits),
            ("copied_blocks", "KV blocks copied because two requests went on from one.", stats.copied_blocks),
        ):
            yield CounterMetricFamily(f"llmkit_{name}", help_text, value=count)


class RequestMetrics:
    """Counts and times of requests that ended, and counts of refused ones; owns their metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._finished = Counter(
            "llmkit_requests_finished", "Choices that ended, by reason.", ["reason"], registry=registry
        )
        for reason in FinishReason:
            self._finished.labels(reason.value)
        self._refused = Counter(
            "llmkit_requests_refused",
            "HTTP requests that were refused, by status code: wrong, unauthorized, beyond the queue (429), "
            "not ready (503).",
            ["code"],
            registry=registry,
        )
        for code in ("400", "401", "404", "413", "429", "503"):
            self._refused.labels(code)
        self._first_token = Histogram(
            "llmkit_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._per_token = Histogram(
            "llmkit_time_per_output_token_seconds",
            "Mean time between the tokens of a request, after its first.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._whole = Histogram(
            "llmkit_request_duration_seconds",
            "From a request's arrival to its end.",
            buckets=_SECONDS,
            registry=registry,
        )

    def refused(self, status: int) -> None:
        """One HTTP request was refused."""
        self._refused.labels(str(status)).inc()

    def add(self, record: RequestRecord) -> None:
        """One request ended."""
        for reason in record.reasons:
            self._finished.labels(reason.value).inc()
        self._whole.observe(record.ended_s - record.arrived_s)
        if record.first_token_s is None:
            return
        self._first_token.observe(record.first_token_s - record.arrived_s)
        later = record.usage.completion_tokens / len(record.reasons) - 1
        if later > 0:
            self._per_token.observe((record.ended_s - record.first_token_s) / later)
