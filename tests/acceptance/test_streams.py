"""Many streams at once on a real server: none loses a token, none gets another's."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from llmkit.testing.http import ServerProcess, StreamedAnswer, validate_stream

STREAMS = 300
WORDS = ("lamp", "Möwe", "港", "crate", "…", "🦀", "tide")


def text(number: int) -> str:
    """What the scripted engine says again; no two are alike anywhere behind their first words."""
    return " ".join(f"{number}{WORDS[(number + at) % len(WORDS)]}{at}" for at in range(3 + number % 3))


def body(number: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    asked |= {"max_tokens": 200, "n": 2 if number % 10 == 0 else 1}
    if number % 2:
        return asked | {"messages": [{"role": "user", "content": text(number)}]}
    return asked | {"prompt": text(number), "return_token_ids": number % 4 == 0}


def expected(number: int) -> str:
    return f"user\n{text(number)}\nassistant\n" if number % 2 else text(number)


async def read(client: httpx.AsyncClient, number: int) -> StreamedAnswer:
    path = "/v1/chat/completions" if number % 2 else "/v1/completions"
    async with client.stream("POST", path, json=body(number)) as answer:
        assert answer.status_code == 200, await answer.aread()
        return validate_stream([line async for line in answer.aiter_lines()])


async def read_all(server: ServerProcess) -> list[StreamedAnswer]:
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=120, limits=limits) as client:
        return await asyncio.gather(*(read(client, number) for number in range(STREAMS)))


def test_no_token_is_lost_or_crossed(scripted) -> None:
    server = scripted.start(f"--max-num-seqs={STREAMS}", "--kv-cache-memory-bytes=64MiB")
    for number, answer in enumerate(asyncio.run(read_all(server))):
        assert answer.error is None
        assert len(answer.choices) == body(number)["n"]
        tokens = 0
        for choice in answer.choices.values():
            assert choice.text == expected(number)
            assert choice.finish_reason == "stop"
            tokens += len(text(number).encode()) + 1
        assert answer.usage is not None
        if number % 2 == 0:
            assert answer.usage["completion_tokens"] == tokens
    assert server.metrics()["kv_blocks_held"] == 0


def test_what_a_step_gives_all_choices_is_one_piece(server: ServerProcess) -> None:
    asked = {"prompt": "slowly", "stream": True, "n": 4, "max_tokens": 40}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=asked, trust_env=False, timeout=60
    ) as answer:
        pieces = list(answer.iter_raw())
    streamed = validate_stream(b"".join(pieces).decode().splitlines())
    assert [choice.text for choice in streamed.choices.values()] == [("0123456789" * 4)] * 4
    frames = sum(piece.count(b"data: ") for piece in pieces)
    assert frames == 4 * 40 + 4 + 1
    assert len(pieces) < frames / 2, "choices of one step go out one by one"
