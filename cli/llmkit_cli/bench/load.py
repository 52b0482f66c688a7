"""The load generator: streaming requests against any OpenAI-compatible server, each one timed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec


@dataclass(frozen=True, slots=True)
class Load:
    """What to send and how fast."""

    base_url: str
    model: str
    chat: bool
    output_len: int
    ignore_eos: bool
    temperature: float
    concurrency: int
    """Requests in flight at once (closed loop)."""
    rate: float | None
    """Requests a second, at exponentially distributed distances (open loop); None for closed."""
    api_key: str | None
    seed: int
    timeout_s: float


@dataclass(slots=True)
class Sample:
    """One request; times in seconds since it was sent."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None
    total_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Between one chunk that carries text and the next."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All samples of one load and how long it took."""

    samples: Sequence[Sample]
    wall_s: float


async def run_load(load: Load, prompts: Sequence[str]) -> Run:
    """Send every prompt once and wait for all answers."""
    headers = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=load.timeout_s, limits=limits) as client:
        started = time.perf_counter()
        gate = asyncio.Semaphore(len(prompts) if load.rate else load.concurrency)
        tasks = [
            asyncio.create_task(_one(client, load, prompt, gate, delay))
            for prompt, delay in zip(prompts, _delays(load, len(prompts)), strict=True)
        ]
        samples = await asyncio.gather(*tasks)
        return Run(samples, time.perf_counter() - started)


def _delays(load: Load, count: int) -> list[float]:
    if load.rate is None:
        return [0.0] * count
    rng = random.Random(load.seed)
    at, delays = 0.0, []
    for _ in range(count):
        delays.append(at)
        at += rng.expovariate(load.rate)
    return delays


async def _one(
    client: httpx.AsyncClient, load: Load, prompt: str, gate: asyncio.Semaphore, delay_s: float
) -> Sample:
    await asyncio.sleep(delay_s)
    async with gate:
        sample = Sample()
        started = last = time.perf_counter()
        try:
            async for chunk in _chunks(client, load, prompt):
                usage = chunk.get("usage")
                if usage:
                    sample.prompt_tokens = usage["prompt_tokens"]
                    sample.output_tokens = usage["completion_tokens"]
                if not _has_text(chunk):
                    continue
                now = time.perf_counter()
                if sample.first_token_s is None:
                    sample.first_token_s = now - started
                else:
                    sample.gaps_s.append(now - last)
                last = now
        except (httpx.HTTPError, msgspec.DecodeError, _Failed) as error:
            sample.error = str(error) or type(error).__name__
        sample.total_s = time.perf_counter() - started
        return sample


class _Failed(Exception):
    """The server answered with an error."""


def _has_text(chunk: dict[str, Any]) -> bool:
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta")
        if choice.get("text") or (delta and (delta.get("content") or delta.get("reasoning_content"))):
            return True
    return False


async def _chunks(client: httpx.AsyncClient, load: Load, prompt: str) -> AsyncIterator[dict[str, Any]]:
    body: dict[str, Any] = {
        "model": load.model,
        "max_tokens": load.output_len,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.ignore_eos:
        body["ignore_eos"] = True
    if load.chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    path = "/v1/chat/completions" if load.chat else "/v1/completions"
    async with client.stream("POST", load.base_url + path, json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise _Failed(f"HTTP {response.status_code}: {text[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = msgspec.json.decode(line[6:])
            if "error" in chunk:
                raise _Failed(str(chunk["error"]))
            yield chunk
