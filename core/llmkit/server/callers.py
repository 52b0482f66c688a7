"""How many requests one caller has in flight."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from llmkit.server.asgi import refuse, route_path
from llmkit.server.auth import OPEN_PATHS
from llmkit.server.errors import Failure

RETRY_AFTER_S = 1


class LimitCallers:
    """ASGI middleware: 429 for a caller that has ``limit`` requests in flight.

    A caller is an API key; where none is needed, a client address, and all who come through a Unix socket
    are one. A request is in flight until the last of its answer is out or its client is gone. What is open
    to everybody is not counted.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._in_flight: dict[str, int] = {}
        """Of callers that have any."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or route_path(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        caller = _caller(scope)
        if self._in_flight.get(caller, 0) >= self._limit:
            await refuse(self._too_many(), scope, receive, send)
            return
        self._in_flight[caller] = self._in_flight.get(caller, 0) + 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight[caller] -= 1
            if not self._in_flight[caller]:
                del self._in_flight[caller]

    def _too_many(self) -> Failure:
        return Failure(
            429,
            f"this caller has {self._limit} requests in flight, the most that are allowed at once"
            " (--max-concurrent-requests-per-key); try again when one of them has ended",
            "rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=RETRY_AFTER_S,
        )


def _caller(scope: Scope) -> str:
    """Names of keys are of hexadecimal digits, which no address is."""
    name: str = scope.get("state", {}).get("caller", "")
    client = scope.get("client")
    return name or (f"address {client[0]}" if client else "")
