"""``GET /load``, in vLLM's shape."""

from __future__ import annotations

from fastapi import APIRouter

from llmkit.contracts import Services


def router(services: Services) -> APIRouter:
    load = APIRouter()

    @load.get("/load")
    async def server_load() -> dict[str, int]:
        """How many requests, a choice each, run and wait."""
        stats = services.stats()
        return {"server_load": stats.running + stats.waiting}

    return load
