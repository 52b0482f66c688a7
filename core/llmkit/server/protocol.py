"""The HTTP protocol with a bound on every request's head and on how long a client may take to send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmkit.server.errors import Failure

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""
HEAD_TIMEOUT_S = 60.0
"""From a connection, or a request's first byte, to the end of its headers."""
BODY_TIMEOUT_S = 60.0
"""Between two pieces of a body."""
logger = logging.getLogger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Refuses what is no HTTP (400), a head that is too large (431) or a request that
    stalls (408), with an error object where no answer has begun.
    """

    def __init__(
        self, *args: Any, on_refusal: Callable[[int, str], None] | None = None, **named: Any
    ) -> None:
        """``on_refusal`` is told the status and the client's address: no application hears of these."""
        super().__init__(*args, **named)
        self._on_refusal = on_refusal
        self._head_bytes = 0
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_more(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes")
        elif self._deadline is not None:
            self._expect_more(BODY_TIMEOUT_S)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "what was sent is no HTTP/1.1 request")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = True
        self._expect_more(HEAD_TIMEOUT_S)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect_more(BODY_TIMEOUT_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._expect_nothing()
        super().handle_websocket_upgrade()

    # ---- the deadline ----

    def _expect_more(self, within_s: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(within_s, self._stalled, within_s)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stalled(self, after_s: float) -> None:
        self._deadline = None
        part = "headers" if self._in_head else "body"
        asked = not self._in_head or self._head_bytes > 0
        self._refuse(408, f"the rest of the request's {part} did not come within {after_s:g} s", asked)

    def _refuse(self, status: int, message: str, asked: bool = True) -> None:
        """Answer where no answer has begun, and close. ``asked``: there was a request, or part of one."""
        self._expect_nothing()
        if self.transport.is_closing():
            return
        client = self.client[0] if self.client else ""
        logger.info("%s: %s", client or "a client", message)
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        if not begun and not self.pipeline:
            if cycle is not None:
                cycle.disconnected = True  # what the application may still answer goes nowhere
            self.transport.write(_answer(status, message))
            if asked and self._on_refusal is not None:
                self._on_refusal(status, client)
        self.transport.close()


def _answer(status: int, message: str) -> bytes:
    body: bytes = Failure(status, message, "invalid_request_error").response().body  # type: ignore[assignment]
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


__all__ = ["BoundedProtocol"]
