"""A line for each HTTP request, for people or for programs; nothing of what was asked or answered."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmkit.server.asgi import REQUEST_ID

logger = logging.getLogger("llmkit.access")
_PATH_CHARS = "/!$&'()*+,;=:@~"
"""Besides letters and digits; all others are escaped, so that a path ends no line and fakes no field."""
MAX_PATH_CHARS = 1024
MAX_CLIENT_CHARS = 64


@dataclass(frozen=True, slots=True)
class Access:
    """One request as the log has it. No query string: it may hold secrets."""

    time: str
    """When it ended, ISO 8601 in UTC."""
    request_id: str
    method: str
    path: str
    status: int
    duration_s: float
    bytes: int
    """Of the answer's body, as far as it was sent."""
    client: str
    """Address; empty behind a Unix socket."""
    caller: str
    """The name of the key; empty where none was needed or none was good."""


def as_text(access: Access) -> str:
    """For people."""
    return (
        f"{access.time} {access.client or '-'} {access.caller or '-'} {access.request_id or '-'}"
        f" {access.method or '-'} {access.path or '-'} {access.status} {access.bytes} {access.duration_s:.3f}"
    )


def as_json(access: Access) -> str:
    """An object on one line."""
    return json.dumps(asdict(access))


FORMS: dict[str, Callable[[Access], str]] = {"text": as_text, "json": as_json}


def set_up() -> None:
    """Lines on standard output, each as it is, whatever other logs look like."""
    if logger.handlers:
        return  # by whoever embeds the server, or an earlier one in this process
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class AccessLog:
    """ASGI middleware, outermost but for the proxy's headers: it sees the status that the client sees."""

    def __init__(self, app: ASGIApp, form: Callable[[Access], str]) -> None:
        self._app = app
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        # A connection that breaks before an answer began is a failure of the server's.
        status, size, name = 500, 0, b""

        async def noting_send(message: Message) -> None:
            nonlocal status, size, name
            if message["type"] == "http.response.start":
                status = message["status"]
                name = next((value for key, value in message["headers"] if key == REQUEST_ID), b"")
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            client = scope.get("client")
            logger.info(
                "%s",
                self._form(
                    Access(
                        time=now(),
                        request_id=name.decode("latin-1"),
                        method=scope["method"],
                        path=quote(scope["path"], safe=_PATH_CHARS, errors="replace")[:MAX_PATH_CHARS],
                        status=status,
                        duration_s=round(time.monotonic() - began, 6),
                        bytes=size,
                        # Behind a proxy it is what a header says.
                        client=quote(client[0], safe=":%")[:MAX_CLIENT_CHARS] if client else "",
                        caller=scope.get("state", {}).get("caller", ""),
                    )
                ),
            )


def log_unread(form: Callable[[Access], str], status: int, client: str) -> None:
    """A request that was refused before it could be read."""
    logger.info("%s", form(Access(now(), "", "", "", status, 0.0, 0, client, "")))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
