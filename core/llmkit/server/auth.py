"""The API key, checked once, in front of everything."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from llmkit.server.asgi import header, refuse, route_path
from llmkit.server.errors import Failure
from llmkit.server.keys import Keys

OPEN_PATHS = frozenset({"/live", "/health", "/ping", "/version", "/metrics"})
"""All that is served without a key, as whole paths."""


class RequireKey:
    """ASGI middleware: every path outside :data:`OPEN_PATHS` needs ``Authorization: Bearer KEY``, or
    Anthropic's ``x-api-key: KEY``.

    Routes find who asks in ``request.state.caller``: a name for the key that does not tell it. This stands
    before routing, so a plugin's route or one nobody knows is as guarded as any other.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        shown = list(_keys_shown(scope))
        caller = self._keys.caller(shown)
        if caller is None and route_path(scope) not in OPEN_PATHS:
            failure = WRONG_KEY if shown else NO_KEY
            await refuse(failure, scope, receive, send, {"WWW-Authenticate": "Bearer"})
            return
        # Of this request alone, and seen by what stands outside, such as the access log.
        scope.setdefault("state", {})["caller"] = caller or ""
        await self._app(scope, receive, send)


def _unauthorized(why: str) -> Failure:
    message = f"{why}: send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
    return Failure(401, message, "invalid_request_error", code="invalid_api_key")


NO_KEY = _unauthorized("this server needs an API key")
WRONG_KEY = _unauthorized("this server knows no such API key")


def _keys_shown(scope: Scope) -> Iterator[bytes]:
    """What the client gives as its key; some clients fill both headers, one of them with anything."""
    given = header(scope, b"x-api-key")
    if given:
        yield given.strip()
    scheme, _, key = header(scope, b"authorization").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        yield key.strip()
