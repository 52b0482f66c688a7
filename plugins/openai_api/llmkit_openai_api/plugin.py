"""Entry point: the routes of OpenAI's API and vLLM's beside it, and those of Anthropic's Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmkit import hookimpl
from llmkit.contracts import RegisterRoutes, Services
from llmkit_openai_api.messages.failures import word_failure

if TYPE_CHECKING:
    from fastapi import APIRouter


@hookimpl
def register_routes(register: RegisterRoutes) -> None:
    register("openai", make_router)
    register("anthropic", make_messages_router, failures=word_failure)


def make_router(services: Services, _options: Any) -> APIRouter:
    from llmkit_openai_api.routes import router

    return router(services)


def make_messages_router(services: Services, _options: Any) -> APIRouter:
    from llmkit_openai_api.messages.routes import router

    return router(services)
