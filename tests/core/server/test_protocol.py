"""What one connection may send, and how long it may take: against a real uvicorn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from llmkit.server import protocol
from llmkit.server.asgi import RequestIds


async def app(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(
    refused: list[tuple[int, str]] | None = None, application: Any = app, **settings: Any
) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    """``refused`` gets what is told of requests that no application saw."""
    told = [] if refused is None else refused
    http: Any = partial(protocol.BoundedProtocol, on_refusal=lambda *what: told.append(what))
    config = uvicorn.Config(
        RequestIds(application), port=0, http=http, lifespan="off", log_config=None, **settings
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1], server
    finally:
        server.should_exit = True
        await task


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Send, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionResetError:
        return await reader.read()
    finally:
        writer.close()


async def test_an_ordinary_request_and_a_second_one_on_the_connection() -> None:
    async with serving() as (port, _):
        first = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answers = await exchange(port, first, last)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert b"\r\n\r\n3HTTP" in answers


async def test_a_large_body_is_no_large_head() -> None:
    async with serving() as (port, _):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n"
        assert (await exchange(port, head, b"a" * 1_000_000)).endswith(b"1000000")


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: "], ids=["path", "header"])
async def test_a_head_without_end_is_refused(start: bytes) -> None:
    refused: list[tuple[int, str]] = []
    async with serving(refused) as (port, _):
        answer = await exchange(port, start, *[b"a" * 40_000] * 2)
    assert refused == [(431, "127.0.0.1")]
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"larger than 65536 bytes" in answer


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        pytest.param(b"", b"headers", id="nothing"),
        pytest.param(b"GET / HT", b"headers", id="half-a-line"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\na", b"body", id="half-a-body"),
    ],
)
async def test_a_request_that_stalls_is_let_go(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, part: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(protocol, "BODY_TIMEOUT_S", 0.2)
    refused: list[tuple[int, str]] = []
    async with serving(refused) as (port, _):
        answer = await exchange(port, sent)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert part in answer
    # A connection on which nothing was asked was not refused anything.
    assert refused == ([(408, "127.0.0.1")] if sent else [])


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
        pytest.param(b"GET / HTTP/9.9\r\n\r\n", id="version"),
        pytest.param(b"FETCH / HTTP/1.1\r\nHost: x\r\n\r\n", id="method"),
        pytest.param(b"GET / HTTP/1.1\r\nno colon\r\n\r\n", id="header"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", id="length"),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two-lengths",
        ),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="chunk"),
    ],
)
async def test_what_is_no_http_gets_an_error_object(sent: bytes) -> None:
    refused: list[tuple[int, str]] = []
    async with serving(refused) as (port, _):
        answer = await exchange(port, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert answer.count(b"HTTP/1.1 4") == 1
    assert refused == [(400, "127.0.0.1")]


async def test_nothing_is_written_into_an_answer_that_has_begun() -> None:
    release = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await release.wait()

    refused: list[tuple[int, str]] = []
    async with serving(refused, slow) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"begun")
        writer.write(b"\x00nonsense\r\n\r\n")
        rest = await reader.read()
        writer.close()
        release.set()
    assert b"HTTP" not in rest
    assert refused == []


async def test_the_end_of_the_server_is_an_answer_to_an_unfinished_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(timeout_graceful_shutdown=1) as (port, server):
        half = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\na"
        waiting = asyncio.create_task(exchange(port, half))
        while not server.server_state.tasks:
            await asyncio.sleep(0.01)
        server.should_exit = True
        answer = await waiting
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in caplog.text
