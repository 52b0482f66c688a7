"""ASGI middleware that every request passes: its id, its size, and what nobody foresaw."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmkit.contracts import HttpRecord
from llmkit.server.errors import Failure, internal_failure, stopping

logger = logging.getLogger(__name__)

REQUEST_ID = b"x-request-id"
_USABLE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def route_path(scope: Scope) -> str:
    """The path as the router matches it: without :class:`RootPath`'s prefix."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


def header(scope: Scope, name: bytes) -> bytes:
    """A request header's value, empty where it was not sent."""
    return next((value for key, value in scope["headers"] if key == name), b"")


async def refuse(
    failure: Failure, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with an error object; a WebSocket is closed before it opens."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": failure.message[:120]})
        return
    await failure.response(headers)(scope, receive, send)


class RequestIds:
    """Outermost: names the request, and turns an unforeseen exception into a 500 and a log entry.

    The client's ``X-Request-Id`` is echoed and serves for logs only; where it sent none, or one that
    cannot stand in a header, a new one is made. Routes read it from the request's headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = header(scope, REQUEST_ID)
        if not _USABLE_ID.fullmatch(name):
            name = uuid.uuid4().hex.encode()
        others = [(key, value) for key, value in scope["headers"] if key != REQUEST_ID]
        scope = dict(scope, headers=[*others, (REQUEST_ID, name)])
        started = False

        async def named_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = dict(message, headers=[*message.get("headers", ()), (REQUEST_ID, name)])
            await send(message)

        try:
            await self._app(scope, receive, named_send)
        except asyncio.CancelledError:
            # The server stops and has waited long enough for this one, such as for the rest of its body.
            if not started:
                await stopping().response({"Connection": "close"})(scope, receive, named_send)
        except Exception:
            logger.exception("request %s: %s %s failed", name.decode(), scope["method"], scope["path"])
            if started:
                raise  # the status is out; only cutting the connection tells the client
            await internal_failure().response()(scope, receive, named_send)


class RootPath:
    """Serves every path with and without a prefix: some proxies strip it, some do not."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(dict(scope, root_path=self._root_path), receive, send)


class TellRequests:
    """Tells ``tell`` of each HTTP request once its answer has ended.

    Stands in front of whatever may refuse; :class:`NoteRoute`, behind it all, knows the route.
    """

    def __init__(self, app: ASGIApp, tell: Callable[[HttpRecord], None]) -> None:
        self._app = app
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, code = time.monotonic(), 500, ""
        noted: list[Scope] = []

        async def watching_send(message: Message) -> None:
            nonlocal status, code
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and not code:
                code = _error_code(message.get("body", b""))
            await send(message)

        try:
            await self._app({**scope, _NOTED: noted}, receive, watching_send)
        finally:
            route = getattr(noted[0].get("route"), "path", "") if noted else ""
            self._tell(HttpRecord(scope["method"], route, status, code, time.monotonic() - began))


class NoteRoute:
    """Innermost: lets :class:`TellRequests` see what the router writes into the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _NOTED in scope:
            scope[_NOTED].append(scope)
        await self._app(scope, receive, send)


def _error_code(body: bytes) -> str:
    """The word for machines in an error object, where the body is one."""
    try:
        return _decode_error(body).error.word
    except msgspec.MsgspecError:
        return ""


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None

    @property
    def word(self) -> str:
        return str(self.code or self.type or "")


class _ErrorBody(msgspec.Struct):
    error: _Error


_NOTED = "llmkit.noted"
_decode_error = msgspec.json.Decoder(_ErrorBody).decode


class LimitBody:
    """Refuses bodies above ``limit`` bytes with 413, by their announced length where there is one."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = header(scope, b"content-length")
        if announced:
            # The HTTP parser has checked the number and ends the body there.
            if int(announced) > self._limit:
                await refuse(self._too_large(), scope, receive, send)
                return
        elif header(scope, b"transfer-encoding"):
            messages = await self._read(receive)
            if messages is None:
                await refuse(self._too_large(), scope, receive, send)
                return
            receive = replay(messages, receive)
        await self._app(scope, receive, send)

    async def _read(self, receive: Receive) -> list[Message] | None:
        """A body of unknown length whole; None where it passes the limit."""
        messages: list[Message] = []
        size = 0
        while True:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                return messages

    def _too_large(self) -> Failure:
        return Failure(
            413,
            f"the body is larger than {self._limit} bytes, the most this server reads (--max-request-bytes)",
            "invalid_request_error",
            code="request_too_large",
        )


def replay(messages: list[Message], receive: Receive) -> Receive:
    remaining = iter(messages)

    async def replaying() -> Message:
        message = next(remaining, None)
        return message if message is not None else await receive()

    return replaying
