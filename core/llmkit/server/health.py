"""Whether the process lives, whether a request can succeed now, and 503 for those that cannot."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from llmkit.server.asgi import refuse, route_path
from llmkit.server.auth import OPEN_PATHS
from llmkit.server.errors import RETRY_AFTER_S, Failure
from llmkit.server.front import Front
from llmkit.version import VERSION

ALWAYS_SERVED = OPEN_PATHS | {"/docs", "/docs/oauth2-redirect", "/openapi.json"}
"""What answers whatever the engine does."""


def health_router(front: Front) -> APIRouter:
    """``/live``, ``/health``, ``/ping`` and ``/version``."""
    router = APIRouter(tags=["health"])

    @router.head("/live", include_in_schema=False)
    @router.get("/live")
    async def live() -> dict[str, Any]:
        """200 while the process answers, whatever the engine does: for liveness probes."""
        return {"status": "live"}

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> JSONResponse:
        """200 if a request can succeed now, else 503 with the phase: for readiness probes."""
        return _health(front)

    @router.head("/ping", include_in_schema=False)
    @router.get("/ping")
    async def ping() -> JSONResponse:
        """As ``/health``."""
        return _health(front)

    @router.post("/ping")
    async def ping_post() -> JSONResponse:
        """As ``/health``."""
        return _health(front)

    @router.get("/version")
    async def version() -> dict[str, str]:
        """Of llmkit."""
        return {"version": VERSION}

    return router


class RequireReady:
    """ASGI middleware: 503 with ``Retry-After`` for all that needs the engine, until it answers."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app = app
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needs_engine = scope["type"] in ("http", "websocket") and route_path(scope) not in ALWAYS_SERVED
        if needs_engine and self._front.state.phase != "ready":
            await refuse(_not_ready(self._front), scope, receive, send)
            return
        await self._app(scope, receive, send)


def _health(front: Front) -> JSONResponse:
    state = front.state
    body = {"phase": state.phase, "detail": state.detail, "fraction": state.fraction}
    if state.phase == "ready":
        return JSONResponse(body)
    return JSONResponse(body, 503, {"Retry-After": str(RETRY_AFTER_S)})


def _not_ready(front: Front) -> Failure:
    state = front.state
    progress = "" if state.fraction is None else f" ({state.fraction:.0%})"
    detail = f": {state.detail}{progress}" if state.detail else ""
    return Failure(
        503,
        f"the server is {state.phase}{detail}",
        "server_error",
        code=state.phase,
        retry_after_s=RETRY_AFTER_S,
    )
