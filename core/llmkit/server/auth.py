"""The API key, checked once, in front of everything."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from llmkit.server.asgi import header, refuse, route_path
from llmkit.server.errors import Failure

_CALLER_CHARS = 16
OPEN_PATHS = frozenset({"/live", "/health", "/ping", "/version", "/metrics"})
"""All that is served without a key, as whole paths."""


class RequireKey:
    """ASGI middleware: every path outside :data:`OPEN_PATHS` needs ``Authorization: Bearer KEY``.

    Routes find who asks in ``request.state.caller``: a name for the key that does not tell it. This stands
    before routing, so a plugin's route or one nobody knows is as guarded as any other.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        caller = self._caller(header(scope, b"authorization"))
        if caller is None and route_path(scope) not in OPEN_PATHS:
            await refuse(UNAUTHORIZED, scope, receive, send, {"WWW-Authenticate": "Bearer"})
            return
        state = {**scope.get("state", {}), "caller": caller or ""}
        await self._app(dict(scope, state=state), receive, send)

    def _caller(self, authorization: bytes) -> str | None:
        """Who has this key; None: nobody."""
        scheme, _, key = authorization.strip().partition(b" ")
        digest = _digest(key.strip())
        if scheme.lower() != b"bearer" or not _any_equal(digest, self._digests):
            return None
        return hashlib.sha256(b"llmkit caller\0" + digest).hexdigest()[:_CALLER_CHARS]


UNAUTHORIZED = Failure(
    401,
    "this server needs an API key: send it as 'Authorization: Bearer KEY'",
    "invalid_request_error",
    code="invalid_api_key",
)


def _digest(key: bytes) -> bytes:
    """Digests are of one length, so that comparing tells nothing about the key's."""
    return hashlib.sha256(key).digest()


def _any_equal(digest: bytes, known: Iterable[bytes]) -> bool:
    """Compares with all of them, whichever it is."""
    found = False
    for candidate in known:
        found |= hmac.compare_digest(digest, candidate)
    return found
