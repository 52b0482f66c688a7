"""``POST /v1/embeddings``, OpenAI's, and ``POST /pooling``, vLLM's."""

from __future__ import annotations

import asyncio
from typing import Any, cast, get_args

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import Pooler, PoolingParams, PoolingTask, Services, listing
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.pooling.bodies import EmbeddingRequest, PoolingRequest
from llmkit_openai_api.pooling.inputs import (
    activation,
    answer,
    check_body,
    pool,
    pooler_for,
    read_inputs,
    special_tokens,
)
from llmkit_openai_api.pooling.vectors import written
from llmkit_openai_api.wire import json_response

_TASKS = get_args(PoolingTask)


def router(services: Services, rules: FieldRules) -> APIRouter:
    embeddings = APIRouter()

    @embeddings.post("/v1/embeddings", response_model=None)
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Embed texts, each into one vector."""
        check_body(services, body, rules, "/v1/embeddings")
        inputs = await read_inputs(services, body, request)
        pooler = pooler_for(services, "embed")
        params = PoolingParams("embed", dimensions=body.dimensions, normalize=_normalize(body, pooler))
        results = await pool(
            request,
            pooler,
            body,
            inputs,
            params,
            prompt_name=body.prompt_name,
            special=special_tokens(body),
        )

        def write() -> Response:
            data = [
                {"object": "embedding", "index": index, "embedding": written(result, body)}
                for index, result in enumerate(results)
            ]
            return json_response(answer(services, "embd", results, data))

        return await asyncio.to_thread(write)

    @embeddings.post("/pooling", response_model=None)
    async def create_pooling(body: PoolingRequest, request: Request) -> Response:
        """What the model makes of texts, as it is: vectors or logits, of each text or of each token."""
        check_body(services, body, rules, "/pooling")
        task = _task(body)
        inputs = await read_inputs(services, body, request)
        pooler = pooler_for(services, *((task,) if task else _TASKS))
        task = task or pooler.spec.tasks[0]
        params = PoolingParams(
            task,
            dimensions=body.dimensions,
            normalize=_normalize(body, pooler),
            activate=activation(body),
        )
        results = await pool(
            request,
            pooler,
            body,
            inputs,
            params,
            prompt_name=body.prompt_name,
            special=special_tokens(body),
        )
        by_token = task in ("token_embed", "token_classify")

        def write() -> Response:
            data: list[Any] = [
                {"object": "pooling", "index": index, "data": written(result, body, by_token=by_token)}
                for index, result in enumerate(results)
            ]
            return json_response(answer(services, "pool", results, data))

        return await asyncio.to_thread(write)

    return embeddings


def _normalize(body: EmbeddingRequest, pooler: Pooler) -> bool:
    given = body.normalize if body.normalize is not None else body.use_activation
    return pooler.spec.normalize if given is None else given


def _task(body: PoolingRequest) -> PoolingTask | None:
    if body.task is not None and body.task not in _TASKS:
        raise RequestError(
            f"task is {body.task!r}; it may be {listing(_TASKS)}", param="task", code="invalid_value"
        )
    if body.dimensions is not None and body.task in ("classify", "token_classify"):
        raise RequestError("dimensions is for embeddings; leave it out", param="dimensions")
    return cast("PoolingTask | None", body.task)
