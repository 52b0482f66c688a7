"""API keys as callers: what tells them apart, what each may have in flight, how long a request may take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from llmkit.config import Config
from llmkit.testing.http import validate_stream
from tests.core.server.local_front import LocalFront, Script, server_config, serving

URL = "/v1/completions"
KEYS = ("alpha-key", "beta-key")
REFUSED_429 = 'llmkit:requests_refused_total{code="rate_limit_exceeded",status="429"} 1.0'


def keyed(**scheduler: Any) -> Config:
    config = server_config(api_key=KEYS)
    return replace(config, scheduler=replace(config.scheduler, **scheduler))


async def ask(client: httpx.AsyncClient, key: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return await client.post(URL, json={"prompt": "hi", "max_tokens": 8, **body}, headers=headers)


async def test_each_key_is_one_caller_whose_name_tells_nothing_of_it() -> None:
    front = LocalFront(keyed())
    async with serving(front) as client:
        for key in (*KEYS, KEYS[0]):
            assert (await ask(client, key)).status_code == 200
    callers = [request.caller for request in front.engine.requests]
    assert callers[0] == callers[2] != callers[1]
    assert all(len(caller) == 16 and caller.isalnum() for caller in callers)


async def test_without_keys_there_is_nobody_in_particular() -> None:
    front = LocalFront()
    async with serving(front) as client:
        assert (await ask(client, "whatever")).status_code == 200
    assert front.engine.requests[0].caller == ""


async def test_a_key_with_too_much_in_flight_gets_429_and_others_go_on() -> None:
    front = LocalFront(keyed(max_tokens_per_key=15))
    release = asyncio.Event()
    front.engine.script = lambda request: Script(release=release)
    async with serving(front) as client:
        first = asyncio.create_task(ask(client, KEYS[0]))
        while not front.engine.requests:
            await asyncio.sleep(0.01)
        refused = await ask(client, KEYS[0])
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["Retry-After"]) >= 1
        others = asyncio.create_task(ask(client, KEYS[1]))
        while len(front.engine.requests) < 2:
            await asyncio.sleep(0.01)
        release.set()
        assert (await first).status_code == (await others).status_code == 200
        assert (await ask(client, KEYS[0])).status_code == 200


@pytest.mark.parametrize("header", ["0.05", "5e-2"])
async def test_a_request_that_takes_too_long_is_504(header: str) -> None:
    front = LocalFront()
    front.says("ab", "cd", hang_after=0)
    async with serving(front) as client:
        answer = await client.post(URL, json={"prompt": "hi"}, headers={"X-Request-Timeout": header})
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "request_timeout"
        assert front.engine.running == set()
        assert front.generator.in_flight == 0


async def test_a_stream_that_takes_too_long_ends_with_an_error() -> None:
    config = server_config(request_timeout=0.1)
    front = LocalFront(config)
    front.says("ab", "cd", hang_after=1)
    async with (
        serving(front) as client,
        client.stream("POST", URL, json={"prompt": "hi", "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        stream = validate_stream([line async for line in answer.aiter_lines()])
    assert stream.text == "ab"
    assert stream.error is not None
    assert stream.error["code"] == "request_timeout"
    assert front.engine.running == set()


@pytest.mark.parametrize("header", ["soon", "", "0", "-1", "nan"])
async def test_a_timeout_that_is_none_is_400(header: str) -> None:
    async with serving(LocalFront()) as client:
        answer = await client.post(URL, json={"prompt": "hi"}, headers={"X-Request-Timeout": header})
        assert answer.status_code == 400
        assert "imeout" in answer.json()["error"]["message"]


# ---- requests in flight ----


def one_each(**server: Any) -> Config:
    config = server_config(**server)
    return replace(config, limits=replace(config.limits, max_concurrent_requests_per_key=1))


async def test_a_key_has_so_many_requests_in_flight_and_others_go_on() -> None:
    front = LocalFront(one_each(api_key=KEYS))
    release = asyncio.Event()
    front.engine.script = lambda request: Script(release=release)
    async with serving(front) as client:
        first = asyncio.create_task(ask(client, KEYS[0], stream=True))
        while not front.engine.requests:
            await asyncio.sleep(0.01)
        refused = await ask(client, KEYS[0])
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert "--max-concurrent-requests-per-key" in refused.json()["error"]["message"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models", headers={"x-api-key": KEYS[1]})).status_code == 200
        assert REFUSED_429 in (await client.get("/metrics")).text
        release.set()
        assert (await first).status_code == 200
        assert (await ask(client, KEYS[0])).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_place_is_free_again_after_an_error_and_when_its_client_leaves(stream: bool) -> None:
    front = LocalFront(one_each())
    front.says("ab", hang_after=1)
    async with serving(front) as client:
        assert (await client.post(URL, json={"prompt": 1})).status_code == 400
        assert (await client.post(URL, content=b"{")).status_code == 400
        leaving = asyncio.create_task(ask(client, "any", stream=stream))
        while not front.engine.running:
            await asyncio.sleep(0.01)
        assert (await ask(client, "any")).status_code == 429
        leaving.cancel()
        while front.engine.running:
            await asyncio.sleep(0.01)
        front.says("ab")
        async with asyncio.timeout(10):
            while (answer := await ask(client, "any", stream=stream)).status_code == 429:
                await asyncio.sleep(0.01)
        assert answer.status_code == 200


async def test_without_keys_each_address_is_a_caller_as_a_trusted_proxy_tells_it() -> None:
    front = LocalFront(one_each(forwarded_allow_ips=("127.0.0.1",)))
    front.says("ab", hang_after=0)
    async with serving(front) as client:
        body = {"prompt": "hi"}
        task = asyncio.create_task(client.post(URL, json=body, headers={"X-Forwarded-For": "192.0.2.1"}))
        while not front.engine.running:
            await asyncio.sleep(0.01)
        front.says("ab")
        again, other = [
            (await client.post(URL, json=body, headers={"X-Forwarded-For": address})).status_code
            for address in ("192.0.2.1", "192.0.2.2")
        ]
        assert (again, other) == (429, 200)
        task.cancel()
