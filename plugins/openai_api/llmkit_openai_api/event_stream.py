"""Server-sent events as an HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from llmkit_openai_api.disconnect import ClientGone, unless_gone

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, and proxies see that the connection lives."""


class EventStream(StreamingResponse):
    """Sends each of ``frames`` as one piece of the body, and a comment after ``keepalive_s`` of silence.

    Calls ``close`` when they end or the client hangs up, begun or not.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
        *,
        keepalive_s: float,
        silent_since_s: float | None = None,
    ) -> None:
        """``keepalive_s`` 0: never; ``silent_since_s``: by the event loop's clock; None: from now on."""
        super().__init__(
            frames,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._frames = frames
        self._close = close
        self._keepalive_s = keepalive_s
        self._sent_s = asyncio.get_running_loop().time() if silent_since_s is None else silent_since_s
        """When something was last sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await unless_gone(receive, self.stream_response(send))
        finally:
            try:
                await self._frames.aclose()
            finally:
                await self._close()

    async def stream_response(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        # Every send is whole frames, so those of the two tasks may alternate.
        keeping = asyncio.create_task(self._keep_alive(send)) if self._keepalive_s else None
        now = asyncio.get_running_loop().time
        try:
            async for frames in self._frames:
                self._sent_s = now()
                await send({"type": "http.response.body", "body": frames, "more_body": True})
        finally:
            if keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due_s = self._sent_s + self._keepalive_s
            if due_s <= now():
                self._sent_s = now()
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            else:
                await asyncio.sleep(due_s - now())
