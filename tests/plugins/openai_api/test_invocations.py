"""``/invocations`` answers what the route answers whose body it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llmkit.testing.http import validate_stream
from tests.core.server.local_front import LocalFront, server_config, serving

HI = [{"role": "user", "content": "hi"}]
URL = "/invocations"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(LocalFront()) as client:
        yield client


def timeless(answer: httpx.Response) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name not in ("id", "created")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "ab", "n": 2}),
        ("/v1/chat/completions", {"messages": HI, "temperature": -1}),
        ("/v1/embeddings", {"input": "ab"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ],
)
async def test_the_body_says_which_route_answers(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    direct, invoked = await client.post(path, json=body), await client.post(URL, json=body)
    assert invoked.status_code == direct.status_code
    assert timeless(invoked) == timeless(direct)


async def test_a_stream_is_a_stream(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, json={"messages": HI, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert validate_stream(answer.text.splitlines()).text == "Hello, world"


async def test_a_body_of_no_route_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, json={"inputs": "ab"})
    assert answer.status_code == 400
    assert "messages, prompt" in answer.json()["error"]["message"]
    assert (await client.post(URL, json=[])).status_code == 400


async def test_a_client_that_leaves_frees_its_request() -> None:
    front = LocalFront()
    front.says("a", "b", hang_after=1)
    async with serving(front) as client:
        async with client.stream("POST", URL, json={"prompt": "a", "stream": True}) as answer:
            await anext(answer.aiter_lines())
        while front.engine.running:
            await asyncio.sleep(0.01)


async def test_a_root_path_is_no_part_of_it() -> None:
    async with serving(LocalFront(config=server_config(root_path="/llm"))) as client:
        for path in ("/llm/invocations", URL):
            assert (await client.post(path, json={"prompt": "a"})).status_code == 200
