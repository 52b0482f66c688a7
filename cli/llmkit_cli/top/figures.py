"""What happened between two scrapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmkit_cli.top.snapshot import Snapshot, quantile

SHARES = (0.5, 0.9, 0.99)
LATENCIES = {
    "time to first token": ("time_to_first_token_seconds",),
    "between tokens": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "in the queue": ("request_queue_time_seconds",),
    "whole request": ("e2e_request_latency_seconds",),
}
"""What is shown -> the histogram, then its older names."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of one histogram, in seconds."""

    quantiles: tuple[float | None, ...]
    """A share of ``SHARES`` each."""
    recent: bool
    """Of what came between the two scrapes; else of all since the server started."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One frame; rates are per second between the two scrapes."""

    models: tuple[str, ...]
    asleep: bool
    running: float
    waiting: float
    kv_usage: float | None
    """Share of the KV cache, 0 to 1."""
    prompt_tokens: float
    generation_tokens: float
    ended: float
    refused: float
    preempted: float
    hit_rate: float | None
    """Of the prefix cache: recent, or of all where nothing was looked up."""
    accepted: float | None
    """Share of the draft tokens, likewise; None: there are none."""
    latencies: Mapping[str, Latency]


def compare(before: Snapshot, now: Snapshot) -> Figures:
    """``before`` is the earlier one of the same server; one that has restarted since counts from 0."""
    before = _same_life(before, now)
    elapsed_s = now.at_s - before.at_s

    def rate(name: str) -> float:
        return (now.total(name) - before.total(name)) / elapsed_s if elapsed_s > 0 else 0.0

    return Figures(
        models=tuple(sorted(now.models)),
        asleep=now.asleep,
        running=now.total("num_requests_running"),
        waiting=now.total("num_requests_waiting"),
        kv_usage=now.mean("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        prompt_tokens=rate("prompt_tokens_total"),
        generation_tokens=rate("generation_tokens_total"),
        ended=rate("request_success_total"),
        refused=rate("requests_refused_total"),
        preempted=rate("num_preemptions_total"),
        hit_rate=_share(before, now, "prefix_cache_hits_total", "prefix_cache_queries_total"),
        accepted=_share(
            before, now, "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
        ),
        latencies={label: _latency(before, now, names) for label, names in LATENCIES.items()},
    )


def _same_life(before: Snapshot, now: Snapshot) -> Snapshot:
    names = ("generation_tokens_total", "prompt_tokens_total", "request_success_total")
    fell = any(now.total(name) < before.total(name) for name in names)
    return Snapshot(before.at_s) if fell else before


def _share(before: Snapshot, now: Snapshot, part: str, whole: str) -> float | None:
    grew = now.total(whole) - before.total(whole)
    if grew > 0:
        return (now.total(part) - before.total(part)) / grew
    return now.total(part) / now.total(whole) if now.total(whole) else None


def _latency(before: Snapshot, now: Snapshot, names: tuple[str, ...]) -> Latency:
    name = next((name for name in names if name in now.buckets), names[0])
    ever, earlier = now.buckets.get(name, {}), before.buckets.get(name, {})
    recent = {bound: count - earlier.get(bound, 0.0) for bound, count in ever.items()}
    some = any(recent.values())
    counts = recent if some else ever
    return Latency(tuple(quantile(counts, share) for share in SHARES), recent=some)
