"""Entry point: ``/v1/models``, ``/v1/[chat/]completions``, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmkit import hookimpl
from llmkit.contracts import RegisterRoutes, Services

if TYPE_CHECKING:
    from fastapi import APIRouter


@hookimpl
def register_routes(register: RegisterRoutes) -> None:
    register("openai", make_router)


def make_router(services: Services, _options: Any) -> APIRouter:
    from llmkit_openai_api.routes import router

    return router(services)
