"""Failures on the routes of other APIs in the words of these, whichever part of the server they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmkit.contracts import FailureWords
from llmkit.server.asgi import REQUEST_ID, route_path

_REPLACED = (b"content-length", b"content-type")


class WordFailures:
    """ASGI middleware: an error object on one of the paths in ``words`` becomes what they make of it."""

    def __init__(self, app: ASGIApp, words: Mapping[str, FailureWords]) -> None:
        self._app = app
        self._words = words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        words = self._words.get(route_path(scope)) if scope["type"] == "http" else None
        if words is None:
            await self._app(scope, receive, send)
            return
        begun: Message | None = None
        body = b""

        async def wording_send(message: Message) -> None:
            nonlocal begun, body
            if message["type"] == "http.response.start" and _is_error_object(message):
                begun = message
            elif begun is not None:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await _worded(begun, body, words)(scope, receive, send)
            else:
                await send(message)

        await self._app(scope, receive, wording_send)


def _is_error_object(begun: Message) -> bool:
    return begun["status"] >= 400 and dict(begun["headers"]).get(b"content-type") == b"application/json"


def _worded(begun: Message, body: bytes, words: FailureWords) -> JSONResponse:
    headers = [(key, value) for key, value in begun["headers"] if key not in _REPLACED]
    request_id = next((value.decode() for key, value in headers if key == REQUEST_ID), "")
    worded = words(begun["status"], json.loads(body)["error"], request_id)
    response = JSONResponse(worded.body, worded.status, dict(worded.headers))
    response.raw_headers += headers
    return response
