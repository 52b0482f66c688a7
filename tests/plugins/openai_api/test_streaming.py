"""Streams over a real HTTP server: usage in chunks, comments in silence, headers, failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from llmkit.contracts import FinishReason
from llmkit.testing.http import validate_stream
from tests.core.server.local_front import LocalFront, server_config, serving

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "stream": True},
    PLAIN: {"prompt": ["ab", "abc"], "stream": True},
}
COMMENT = ": keep-alive"


@asynccontextmanager
async def stream(front: LocalFront, **options: Any) -> AsyncIterator[httpx.Response]:
    async with (
        serving(front) as client,
        client.stream("POST", CHAT, json=BODIES[CHAT] | options) as answer,
    ):
        yield answer


def impatient(keepalive_s: float = 0.02) -> LocalFront:
    return LocalFront(config=server_config(sse_keepalive=keepalive_s))


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("at_end", [False, True])
async def test_every_chunk_has_the_usage_of_its_choice(path: str, at_end: bool) -> None:
    options = {"include_usage": at_end, "continuous_usage_stats": True, "include_obfuscation": True}
    async with serving(LocalFront()) as client:
        answer = await client.post(path, json=BODIES[path] | {"n": 2, "stream_options": options})
    streamed = validate_stream(answer.text.splitlines())
    last: dict[int, dict[str, Any]] = {}
    for chunk in streamed.chunks:
        assert chunk["usage"] is not None
        for choice in chunk["choices"]:
            last[choice["index"]] = chunk["usage"]
    assert len(last) == (2 if path == CHAT else 4)
    assert {usage["completion_tokens"] for usage in last.values()} == {13}
    if path == PLAIN:
        assert [last[index]["prompt_tokens"] for index in range(4)] == [2, 2, 3, 3]
    assert (streamed.usage is not None) == at_end
    if streamed.usage is not None:
        counted = sum(usage["completion_tokens"] for usage in last.values())
        assert streamed.usage["completion_tokens"] == counted


async def test_headers_say_that_nobody_may_hold_a_stream_back() -> None:
    async with stream(LocalFront()) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"


async def test_a_slow_first_token_sends_headers_and_comments() -> None:
    front, release = impatient(), asyncio.Event()
    front.says("ab", "c", release=release)
    async with stream(front) as answer:
        assert answer.status_code == 200
        lines = []
        async for line in answer.aiter_lines():
            lines.append(line)
            if lines.count(COMMENT) == 2:
                release.set()
    assert lines[0] == COMMENT
    assert validate_stream(lines).text == "abc"


async def test_long_silences_get_comments() -> None:
    front = impatient()
    front.says("a", "b", "c", pause_s=0.1)
    async with stream(front) as answer:
        lines = [line async for line in answer.aiter_lines()]
    assert lines.count(COMMENT) > 2
    assert validate_stream(lines).text == "abc"


async def test_comments_can_be_switched_off() -> None:
    front = impatient(0)
    front.says("a", "b", pause_s=0.1)
    async with stream(front) as answer:
        lines = [line async for line in answer.aiter_lines()]
    assert COMMENT not in lines


async def test_a_failure_after_the_headers_is_an_event() -> None:
    front, release = impatient(), asyncio.Event()
    front.says(finish=FinishReason.ERROR, error="the step failed", release=release)
    async with stream(front) as answer:
        assert answer.status_code == 200
        release.set()
        lines = [line async for line in answer.aiter_lines()]
    error = validate_stream(lines).error
    assert error is not None
    assert error["message"] == "the step failed"


async def test_a_failure_before_the_first_event_has_a_status() -> None:
    front = LocalFront()
    front.says(finish=FinishReason.ERROR, error="the step failed")
    async with stream(front) as answer:
        assert answer.status_code == 500


async def test_a_client_that_leaves_before_the_first_token_frees_its_request() -> None:
    front = impatient()
    front.says("a", release=asyncio.Event())
    async with stream(front) as answer:
        async for line in answer.aiter_lines():
            if line == COMMENT:
                break
        assert front.engine.running
        await answer.aclose()
        while front.engine.running:
            await asyncio.sleep(0.01)
    assert len(front.engine.aborted) == 1
