"""The engine's own counters, and what is measured of its steps."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from llmkit.contracts import EngineStats, Services, StepRecord
from llmkit_observability.instruments import Histogram, Labels

_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 2.5, 5, 10, 20, 40, 80),
)


def gauges(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    """Name, help and value."""
    usage = stats.blocks_held / stats.blocks_total if stats.blocks_total else 0.0
    yield "num_requests_running", "Requests that hold KV blocks.", stats.running
    yield "num_requests_waiting", "Requests in the queue.", stats.waiting
    yield "kv_cache_usage_perc", "Share of KV blocks that a request holds, 0 to 1.", usage
    yield "gpu_cache_usage_perc", "kv_cache_usage_perc under its older name.", usage
    yield "kv_blocks_total", "Blocks of the KV cache.", stats.blocks_total
    yield "kv_blocks_held", "KV blocks that a request holds.", stats.blocks_held


def counters(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    """Name without ``_total``, help and value."""
    yield "engine_steps", "Steps of the engine.", stats.steps
    yield "prompt_tokens", "Prompt tokens computed, without those from the cache.", stats.prompt_tokens
    yield "generation_tokens", "Tokens generated.", stats.generated_tokens
    yield "num_preemptions", "Requests set back to make room for others.", stats.preemptions
    yield "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries
    yield "prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits
    yield (
        "spec_decode_num_draft_tokens",
        "Tokens that a speculator proposed and the model verified.",
        stats.draft_tokens,
    )
    yield (
        "spec_decode_num_accepted_tokens",
        "Of those, the ones the model would have sampled too.",
        stats.accepted_tokens,
    )
    yield "forced_tokens", "Tokens that a grammar left no choice about.", stats.forced_tokens
    yield "kv_offload_queries", "Prompt tokens looked up in the KV connector.", stats.offload_queries
    yield "kv_offload_hits", "Prompt tokens loaded from the KV connector.", stats.offload_hits
    yield "copied_blocks", "KV blocks copied because two requests went on from one.", stats.copied_blocks


class EngineMetrics:
    """Reads the engine's counters when scraped; owns the histograms of steps."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen = EngineStats()
        self._step_tokens = Histogram(
            "iteration_tokens_total", "Tokens of a step, of prompts and generated.", _STEP_TOKENS
        )
        self._gaps = Histogram(
            "inter_token_latency_seconds",
            "Time between two outputs of a request; with speculation one may have several tokens.",
            TOKEN_SECONDS,
        )

    def step(self, record: StepRecord) -> None:
        """Some outputs came; with several steps between two of them, they count as one."""
        stats, seen = record.stats, self._seen
        if stats.steps != seen.steps:
            self._seen = stats
            tokens = stats.prompt_tokens - seen.prompt_tokens + stats.generated_tokens - seen.generated_tokens
            if tokens > 0:
                self._step_tokens.add(tokens)
        for gap_s, count in record.gaps_s.items():
            self._gaps.add(gap_s, count)

    def collect(self, prefix: str, labels: Labels) -> Iterator[Metric]:
        stats = self._services.stats()
        values = list(labels.values())
        for name, help_text, value in gauges(stats):
            gauge = GaugeMetricFamily(prefix + name, help_text, labels=list(labels))
            gauge.add_metric(values, value)
            yield gauge
        for name, help_text, value in counters(stats):
            counter = CounterMetricFamily(prefix + name, help_text, labels=list(labels))
            counter.add_metric(values, value)
            yield counter
        yield self._step_tokens.family(prefix, labels)
        yield self._gaps.family(prefix, labels)
        yield self._cache_config(prefix, labels)
        yield self._sleep_state(prefix, labels)

    def _cache_config(self, prefix: str, labels: Labels) -> Metric:
        ready, cache = self._services.ready, self._services.config.cache
        told = {
            "block_size": ready.block_size,
            "num_gpu_blocks": ready.num_blocks,
            "cache_dtype": cache.kv_cache_dtype,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "kv_bytes": ready.kv_bytes,
        }
        family = GaugeMetricFamily(
            prefix + "cache_config_info", "How the KV cache is cut; always 1.", labels=[*labels, *told]
        )
        family.add_metric([*labels.values(), *map(str, told.values())], 1)
        return family

    def _sleep_state(self, prefix: str, labels: Labels) -> Metric:
        """In vLLM's words, whose first level moves weights; here they may stay."""
        asleep = self._services.control.asleep
        state = "discard_all" if "weights" in asleep else "weights_offloaded" if asleep else "awake"
        family = GaugeMetricFamily(
            prefix + "engine_sleep_state",
            "1 for the state the engine is in: awake, or asleep at level 1 or 2.",
            labels=[*labels, "sleep_state"],
        )
        for name in ("awake", "weights_offloaded", "discard_all"):
            family.add_metric([*labels.values(), name], float(name == state))
        return family
