"""All routes of this plugin on one router."""

from __future__ import annotations

from fastapi import APIRouter

from llmkit.contracts import Services
from llmkit_openai_api import admin, chat, completions, invocations, load, models, tokenize
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.pooling import classify, embeddings, scoring
from llmkit_openai_api.responses import routes as responses


def router(services: Services) -> APIRouter:
    """``services`` may be incomplete yet: routes read it when they are called."""
    rules = FieldRules(strict=services.config.server.strict_requests)
    combined = APIRouter(tags=["openai"])
    combined.include_router(models.router(services))
    combined.include_router(chat.router(services, rules))
    combined.include_router(completions.router(services, rules))
    combined.include_router(responses.router(services, rules))
    combined.include_router(tokenize.router(services, rules))
    combined.include_router(load.router(services))
    combined.include_router(admin.router(services))
    for pooling in (embeddings, scoring, classify):
        combined.include_router(pooling.router(services, rules))
    combined.include_router(invocations.router(services, combined))
    return combined
