"""A plugin whose ``prepare_request`` caps the answer of requests that carry a limit for it."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl


@hookimpl
async def prepare_request(draft: Any) -> None:
    if "limit" in draft.plugin_args:
        draft.set("max_tokens", draft.plugin_args["limit"], "the request's own limit")
