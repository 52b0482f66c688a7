"""``/metrics``: the engine's counters and histograms of ended requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import httpx
from prometheus_client.parser import text_string_to_metric_families

from llmkit.contracts import EngineStats, Services
from llmkit_observability.metrics import EngineCollector
from tests.core.server.local_front import LocalFront, State, server_config, serving

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def test_gauges_follow_the_engine() -> None:
    front = LocalFront()
    front.says("a", "b", hang_after=1)
    async with serving(front) as client:
        task = asyncio.create_task(client.post("/v1/chat/completions", json=HI))
        while front.engine.generated < 1:
            await asyncio.sleep(0.005)
        during = await scrape(client)
        assert during["llmkit_requests_running"] == 1
        assert during["llmkit_kv_blocks_total"] == 64
        assert during["llmkit_kv_blocks_held"] == 1
        assert during["llmkit_kv_cache_usage_ratio"] == 1 / 64
        task.cancel()
        while front.engine.running:
            await asyncio.sleep(0.005)
        after = await scrape(client)
        assert after["llmkit_requests_running"] == 0
        assert after["llmkit_requests_finished_total[abort]"] == 1
        assert after["llmkit_generation_tokens_total"] == 1


def test_no_counter_of_the_engine_is_missing() -> None:
    fields = EngineStats.__struct_fields__
    stats = EngineStats(**{name: 1000 + number for number, name in enumerate(fields)})
    collector = EngineCollector(cast("Services", SimpleNamespace(stats=lambda: stats)))
    shown = [sample.value for metric in collector.collect() for sample in metric.samples]
    assert set(map(float, range(1000, 1000 + len(fields)))) <= set(shown)


async def test_each_request_is_counted_once() -> None:
    front = LocalFront()
    async with serving(front) as client:
        await client.post("/v1/chat/completions", json={**HI, "n": 3})
        await client.post("/v1/chat/completions", json={**HI, "max_tokens": 2})
        await client.post("/v1/chat/completions", json={**HI, "max_tokens": -2})
        counts = await scrape(client)
    assert counts["llmkit_requests_finished_total[stop]"] == 3
    assert counts["llmkit_requests_finished_total[length]"] == 1
    assert counts["llmkit_requests_finished_total[error]"] == 0
    for name in ("time_to_first_token", "time_per_output_token", "request_duration"):
        assert counts[f"llmkit_{name}_seconds_count"] == 2
    assert counts["llmkit_request_duration_seconds_sum"] >= counts["llmkit_time_to_first_token_seconds_sum"]


async def test_refusals_are_counted_by_status() -> None:
    front = LocalFront(server_config(api_key=("k",)))
    right = {"Authorization": "Bearer k"}
    async with serving(front) as client:
        for body in ({}, {**HI, "max_tokens": -1}, {**HI, "top_p": 7}):
            await client.post("/v1/chat/completions", json=body, headers=right)
        await client.post("/v1/chat/completions", json=HI)
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
        name: count for name, count in counts.items() if name.startswith("llmkit_requests_refused_total")
    }
    assert {name[30:-1]: count for name, count in refused.items() if count} == {
        "400": 3,
        "401": 1,
        "429": 1,
        "503": 1,
    }
