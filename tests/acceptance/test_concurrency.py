"""Many at once, a third of them cancelled half-way: the others notice nothing, and nothing is left."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from llmkit.testing.http import ServerProcess, read_metrics

SLOW = {
    "default": {"text": "the same text for everybody, token by token", "delay_ms": 1},
    "rules": [
        {"match": f"<{i}>", "text": f"answer {i}: " + f"{i} " * (20 + i % 7), "delay_ms": 1}
        for i in range(64)
    ],
}


async def gauges(url: str) -> dict[str, float]:
    async with httpx.AsyncClient(trust_env=False) as client:
        return read_metrics((await client.get(f"{url}/metrics")).text)


async def run_all(url: str, model: str, prompts: list[str], max_tokens: int) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        settings = {"model": model, "temperature": 0, "max_tokens": max_tokens}

        async def one(i: int, *, cancel: bool = False) -> str:
            messages = [{"role": "user", "content": prompts[i]}]
            if not cancel and i % 2:
                whole = await client.chat.completions.create(messages=messages, **settings)
                return whole.choices[0].message.content
            stream = await client.chat.completions.create(messages=messages, stream=True, **settings)
            text, pieces = "", 0
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                pieces += 1
                if cancel and pieces == 5:
                    await stream.close()
                    break
            return text

        kept = [i for i in range(len(prompts)) if i % 3]
        solo = {i: await one(i) for i in kept}
        together = await asyncio.gather(*(one(i, cancel=i % 3 == 0) for i in range(len(prompts))))
        assert {i: together[i] for i in kept} == solo
    for _ in range(100):
        left = await gauges(url)
        if left["num_requests_running"] == left["num_requests_waiting"] == left["kv_blocks_held"] == 0:
            break
        await asyncio.sleep(0.05)
    assert left["num_requests_running"] == 0
    assert left["num_requests_waiting"] == 0
    assert left["kv_blocks_held"] == 0
    assert left["kv_cache_usage_perc"] == 0


async def test_sixty_four_at_once(scripted) -> None:
    # Few rows a step, so that some wait; few blocks, so that some are preempted.
    server = scripted.start("--max-num-seqs=24", "--num-gpu-blocks-override=200", script=SLOW)
    await run_all(server.url, "tiny", [f"question <{i}>" for i in range(64)], 40)


@pytest.mark.model
@pytest.mark.parametrize(
    ("count", "tokens"), [pytest.param(12, 8), pytest.param(64, 16, marks=pytest.mark.full)]
)
async def test_many_at_once_with_the_small_model(
    model_server: ServerProcess, count: int, tokens: int
) -> None:
    prompts = [f"Write a sentence about the number {i}." for i in range(count)]
    await run_all(model_server.url, "smollm2-135m", prompts, tokens)


@pytest.mark.model
async def test_streamed_beside_others_gives_the_logprobs_of_whole_and_alone(
    model_server: ServerProcess,
) -> None:
    url = f"{model_server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:

        def ask(i: int, *, stream: bool) -> Any:
            return client.chat.completions.create(
                model="smollm2-135m",
                messages=[{"role": "user", "content": f"Tell me {i} facts about rye bread."}],
                max_tokens=12,
                temperature=i % 2,
                seed=i,
                logprobs=True,
                top_logprobs=5,
                stream=stream,
            )

        async def streamed(i: int) -> tuple[str, list[Any]]:
            text, logprobs = "", []
            async for chunk in await ask(i, stream=True):
                text += chunk.choices[0].delta.content or ""
                if chunk.choices[0].logprobs:
                    logprobs += [entry.model_dump() for entry in chunk.choices[0].logprobs.content]
            return text, logprobs

        alone = [(await ask(i, stream=False)).choices[0] for i in range(6)]
        beside = await asyncio.gather(*(streamed(i) for i in range(6)))
    for choice, (text, logprobs) in zip(alone, beside, strict=True):
        assert text == choice.message.content
        assert logprobs == [entry.model_dump() for entry in choice.logprobs.content]
