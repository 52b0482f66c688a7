"""``/metrics``: the engine's counters, and what is measured of steps, requests and HTTP."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmkit.config import Config, ObservabilityConfig
from llmkit.contracts import EngineStats, FinishReason, RequestRecord, StepRecord, Usage
from llmkit_observability.engine import EngineMetrics, counters, gauges
from llmkit_observability.instruments import Histogram
from llmkit_observability.requests import RequestMetrics
from tests.core.server.local_front import LocalFront, State, server_config, serving

HI = {"messages": [{"role": "user", "content": "hi"}]}
DOCS = Path(__file__).parents[3] / "docs"


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    """By name without prefix, the values of labels in brackets but those that all have."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            name = sample.name.removeprefix("llmkit:")
            found[name + "".join(f"[{labels[k]}]" for k in sorted(labels))] = sample.value
    return found


async def test_gauges_follow_the_engine() -> None:
    front = LocalFront()
    front.says("a", "b", hang_after=1)
    async with serving(front) as client:
        task = asyncio.create_task(client.post("/v1/chat/completions", json=HI))
        while front.engine.generated < 1:
            await asyncio.sleep(0.005)
        during = await scrape(client)
        assert during["num_requests_running"] == 1
        assert during["kv_blocks_total"] == 64
        assert during["kv_blocks_held"] == 1
        assert during["kv_cache_usage_perc"] == during["gpu_cache_usage_perc"] == 1 / 64
        task.cancel()
        while front.engine.running:
            await asyncio.sleep(0.005)
        after = await scrape(client)
        assert after["num_requests_running"] == 0
        assert after["request_success_total[abort]"] == 1
        assert after["generation_tokens_total"] == 1


def test_no_counter_of_the_engine_is_missing() -> None:
    fields = EngineStats.__struct_fields__
    stats = EngineStats(**{name: 1000 + number for number, name in enumerate(fields)})
    shown = {value for _, _, value in (*gauges(stats), *counters(stats))}
    assert set(map(float, range(1000, 1000 + len(fields)))) <= shown


async def test_each_request_is_counted_once() -> None:
    front = LocalFront()
    async with serving(front) as client:
        await client.post("/v1/chat/completions", json={**HI, "n": 3})
        await client.post("/v1/chat/completions", json={**HI, "max_tokens": 2})
        await client.post("/v1/chat/completions", json={**HI, "max_tokens": -2})
        counts = await scrape(client)
    assert counts["request_success_total[stop]"] == 3
    assert counts["request_success_total[length]"] == 1
    assert counts["request_success_total[error]"] == 0
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert counts[f"{name}_seconds_count"] == 2
    assert counts["request_params_n_sum"] == 4
    assert counts["request_generation_tokens_sum"] == 3 * 13 + 2
    assert counts["request_max_num_generation_tokens_sum"] == 13 + 2
    assert counts["request_params_max_tokens_bucket[2.0]"] == 1
    assert counts["e2e_request_latency_seconds_sum"] >= counts["time_to_first_token_seconds_sum"]


def test_the_times_of_a_request_add_up() -> None:
    metrics = RequestMetrics()
    usage = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=0)
    metrics.ended(RequestRecord("r", (FinishReason.STOP,), usage, 5, 16, 10.0, 10.5, 11.5, 13.5))
    metrics.ended(RequestRecord("r", (FinishReason.ABORT,), usage, 0, 16, 10.0, None, None, 12.0))
    sums = {
        sample.name: sample.value
        for family in metrics.collect("", {})
        for sample in family.samples
        if sample.name.endswith(("_sum", "_count"))
    }
    assert sums["request_queue_time_seconds_sum"] == 0.5
    assert sums["request_prefill_time_seconds_sum"] == 1
    assert sums["request_decode_time_seconds_sum"] == 2
    assert sums["request_inference_time_seconds_sum"] == 3
    assert sums["time_to_first_token_seconds_sum"] == 1.5
    assert sums["request_time_per_output_token_seconds_sum"] == 0.5
    assert sums["e2e_request_latency_seconds_sum"] == 3.5 + 2
    assert sums["request_queue_time_seconds_count"] == sums["request_decode_time_seconds_count"] == 1


def test_steps_are_measured_by_their_tokens_and_gaps() -> None:
    front = LocalFront()
    metrics = EngineMetrics(front.services)
    metrics.step(StepRecord(EngineStats(steps=1, prompt_tokens=30, generated_tokens=1), {}))
    metrics.step(StepRecord(EngineStats(steps=2, prompt_tokens=30, generated_tokens=4), {0.02: 2, 0.5: 1}))
    metrics.step(StepRecord(EngineStats(steps=2, prompt_tokens=30, generated_tokens=4), {}))
    found = {
        sample.name + sample.labels.get("le", ""): sample.value
        for family in metrics.collect("", {})
        for sample in family.samples
    }
    assert (found["iteration_tokens_total_count"], found["iteration_tokens_total_sum"]) == (2, 34)
    assert (found["iteration_tokens_total_bucket8.0"], found["iteration_tokens_total_bucket32.0"]) == (1, 2)
    assert found["inter_token_latency_seconds_count"] == 3
    assert found["inter_token_latency_seconds_sum"] == pytest.approx(0.54)
    assert found["inter_token_latency_seconds_bucket0.02"] == 2


def test_a_histogram_counts_a_value_in_the_bucket_whose_bound_it_is() -> None:
    histogram = Histogram("h", "", (1, 5))
    for value in (0, 1, 1.5, 5, 9):
        histogram.add(value)
    (buckets,) = [
        [sample.value for sample in family.samples if sample.name == "h_bucket"]
        for family in [histogram.family("", {})]
    ]
    assert buckets == [2, 4, 5]


async def test_refusals_are_counted_by_reason_and_requests_by_route() -> None:
    front = LocalFront(server_config(api_key=("k",)))
    right = {"Authorization": "Bearer k"}
    async with serving(front) as client:
        for body in ({}, {**HI, "max_tokens": -1}, {**HI, "max_tokens": 10_000}):
            await client.post("/v1/chat/completions", json=body, headers=right)
        await client.post("/v1/chat/completions", json=HI)
        await client.get("/v1/models/tiny", headers=right)
        await client.get("/nothing/here", headers=right)
        front.says("a", hang_after=0)
        task = asyncio.create_task(client.post("/v1/chat/completions", json=HI, headers=right))
        while not front.engine.running:
            await asyncio.sleep(0.005)
        front.generator.room.capacity = 1
        assert (await client.post("/v1/chat/completions", json=HI, headers=right)).status_code == 429
        task.cancel()
        while front.engine.running:
            await asyncio.sleep(0.005)
        front.state = State("draining")
        await client.post("/v1/chat/completions", json=HI, headers=right)
        counts = await scrape(client)
    refused = {
        name[22:]: count for name, count in counts.items() if name.startswith("requests_refused_total")
    }
    assert {reason: count for reason, count in refused.items() if count} == {
        "[invalid_request_error][400]": 1,
        "[integer_below_min_value][400]": 1,
        "[context_length_exceeded][400]": 1,
        "[invalid_api_key][401]": 1,
        "[not_found][404]": 1,
        "[queue_full][429]": 1,
        "[draining][503]": 1,
    }
    assert counts["http_requests_total[/v1/chat/completions][POST][4xx]"] == 5, "and the one that left"
    assert counts["http_requests_total[/v1/models/{model:path}][GET][2xx]"] == 1
    assert counts["http_requests_total[none][GET][4xx]"] == 1
    assert counts["http_requests_total[none][POST][4xx]"] == 1, "without a key no route is reached"
    assert counts["http_request_duration_seconds_count[/v1/models/{model:path}][GET]"] == 1


async def test_the_prefix_is_what_the_flag_says_and_every_series_names_its_model() -> None:
    config = replace(Config(), observability=ObservabilityConfig(metrics_prefix="vllm"))
    async with serving(LocalFront(config)) as client:
        text = (await client.get("/metrics")).text
    assert "llmkit" not in text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text.splitlines()
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 0.0' in text


async def test_a_server_without_a_model_yet_tells_of_http_alone() -> None:
    front = LocalFront()
    front.services = type(front.services)(front.config)
    front.state = State("starting")
    async with serving(front) as client:
        await client.post("/v1/chat/completions", json=HI)
        counts = await scrape(client)
    assert counts["requests_refused_total[starting][503]"] == 1
    assert not any("engine_steps" in name for name in counts)


async def families() -> dict[str, tuple[str, str]]:
    """Name as it is queried -> type and help."""
    async with serving(LocalFront()) as client:
        await client.post("/v1/chat/completions", json=HI)
        text = (await client.get("/metrics")).text
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return {
        name: (kind, helps[name]) for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    }


async def test_the_page_has_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (.*) \|$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    told = {name.replace("PREFIX:", "llmkit:"): (kind, text) for name, kind, text in rows}
    exported = await families()
    wanted = "\n".join(
        f"| `{name.replace('llmkit:', 'PREFIX:')}` | {kind} | {text} |"
        for name, (kind, text) in exported.items()
    )
    assert told == exported, f"docs/metrics.md should have\n{wanted}"
    assert len(rows) == len(exported)
