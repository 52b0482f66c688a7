"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

import hashlib
from typing import Any

from fastapi import APIRouter

from llmkit.contracts import Services
from llmkit_openai_api.request import check_model


def router(services: Services) -> APIRouter:
    models = APIRouter()

    @models.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """Every name that requests may use."""
        return {"object": "list", "data": [_card(services, name) for name in services.model.names]}

    @models.get("/v1/models/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        """One of them."""
        check_model(services, model or "/")  # a name that no model has: only a body may leave it out
        return _card(services, model)

    return models


def _card(services: Services, name: str) -> dict[str, Any]:
    model = services.model
    return {
        "id": name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "llmkit",
        "root": model.root,
        "parent": None,
        "max_model_len": model.max_model_len,
        "permission": [
            {
                "id": f"modelperm-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}",
                "object": "model_permission",
                "created": model.created_s,
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": False,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }
