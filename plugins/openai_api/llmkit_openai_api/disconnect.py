"""Stops the work for a client that went away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from llmkit import RequestError

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499


class ClientGone(RequestError):
    """The client closed the connection; the answer to it reaches nobody."""

    def __init__(self) -> None:
        super().__init__("the client closed the connection", status=CLIENT_CLOSED_REQUEST)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, cancelled when the client hangs up. The request's body must have been read.

    :raises ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hangs_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(StreamingResponse):
    """Server-sent events; calls ``close`` when they end or the client hangs up, begun or not."""

    def __init__(self, frames: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            frames,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._frames = frames
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await unless_gone(receive, self.stream_response(send))
        finally:
            try:
                await self._frames.aclose()
            finally:
                await self._close()


async def _hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
