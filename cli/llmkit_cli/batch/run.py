"""Sends the requests of a batch, several at a time, and writes down what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from llmkit.errors import EngineError
from llmkit_cli.batch.lines import Line
from llmkit_cli.batch.output import Output, answered, refused

ATTEMPTS = 6
"""For one request to a server that is full or does not answer."""
PAUSE_S = 1.0
"""Before the second attempt; doubles with each."""
BUSY = (429, 503)


async def run_batch(
    client: httpx.AsyncClient,
    lines: Iterator[Line],
    output: Output,
    concurrency: int,
    on_answer: Callable[[], None],
) -> None:
    """Answer all ``lines`` that ``output`` does not have yet, at most ``concurrency`` at once.

    :raises EngineError: the server does not take requests any more; those that it has not answered are not in
        the output.
    """

    async def work() -> None:
        for line in lines:  # shared by all workers
            if line.key not in output.done:
                await output.write(line, await _answer(client, line))
            on_answer()

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _answer(client: httpx.AsyncClient, line: Line) -> dict[str, Any]:
    if line.fault is not None:
        return refused(line, line.fault)
    why = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            answer = await client.post(line.url, json=line.body)
        except httpx.TransportError as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if answer.status_code not in BUSY:
            return answered(line, answer.status_code, answer.headers.get("x-request-id", ""), _body(answer))
        why = f"{answer.status_code}: {answer.text[:300]}"
    raise EngineError(
        f"the server takes no requests ({why}); what it has answered is kept: go on with --resume"
    )


def _body(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text
