"""Routes that change or show the server itself, in vLLM's shapes; behind ``--enable-admin-routes``."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from llmkit import RequestError
from llmkit.contracts import Services, shown_config
from llmkit_openai_api.wire import json_response

Tag = Literal["weights", "kv_cache"]


def router(services: Services) -> APIRouter:
    enabled = services.config.server.enable_admin_routes
    admin = APIRouter(
        tags=["admin"], include_in_schema=enabled, dependencies=[] if enabled else [Depends(_refuse)]
    )

    @admin.get("/server_info", response_model=None)
    async def server_info(config_format: Literal["text", "json"] = "text") -> Response:
        """Settings, secrets left out, and what the engine says of itself."""
        config = shown_config(services.config)
        text = "\n".join(f"{section}: {json.dumps(values)}" for section, values in config.items())
        return json_response(
            {
                "vllm_config": config if config_format == "json" else text,
                "engine": msgspec.to_builtins(services.ready),
                "asleep": list(services.control.asleep),
            }
        )

    @admin.post("/reset_prefix_cache", response_model=None)
    async def reset_prefix_cache() -> Response:
        """Forget the KV of every prompt that no request holds."""
        await services.reset_prefix_cache()
        return Response()

    @admin.post("/sleep", response_model=None)
    async def sleep(level: Annotated[int, Query(ge=1, le=2)] = 1) -> Response:
        """Give memory back: the KV cache's (1), the weights' too (2). 409 while requests are under way."""
        await services.control.sleep(level)
        return Response()

    @admin.post("/wake_up", response_model=None)
    async def wake_up(tags: Annotated[list[Tag] | None, Query()] = None) -> Response:
        """Take memory again, all or what ``tags`` name."""
        await services.control.wake_up(tags)
        return Response()

    @admin.get("/is_sleeping", response_model=None)
    async def is_sleeping() -> dict[str, bool]:
        """Whether anything has still to be woken up."""
        return {"is_sleeping": bool(services.control.asleep)}

    @admin.post("/start_profile", response_model=None)
    async def start_profile() -> Response:
        """Record what the workers do until ``/stop_profile``; needs ``--profiler-dir``."""
        await services.control.start_profile()
        return Response()

    @admin.post("/stop_profile", response_model=None)
    async def stop_profile() -> dict[str, Any]:
        """End it; the traces' paths on the server, one a rank."""
        return {"traces": await services.control.stop_profile()}

    return admin


async def _refuse(request: Request) -> None:
    raise RequestError(
        f"{request.url.path} is an admin route; start the server with --enable-admin-routes to have it",
        code="admin_routes_off",
        status=403,
    )
