"""Entry point: ``GET /metrics`` for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmkit import hookimpl
from llmkit.contracts import RegisterRoutes, Services

if TYPE_CHECKING:
    from fastapi import APIRouter


@hookimpl
def register_routes(register: RegisterRoutes) -> None:
    register("metrics", make_router)


def make_router(services: Services, _options: Any) -> APIRouter:
    from llmkit_observability.metrics import router

    return router(services)
