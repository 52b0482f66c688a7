"""``POST /classify``, in vLLM's shape."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit.contracts import PooledText, PoolingParams, PoolingSpec, Services
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.pooling.bodies import ClassifyRequest
from llmkit_openai_api.pooling.inputs import (
    activation,
    answer,
    check_body,
    pool,
    pooler_for,
    read_inputs,
    special_tokens,
)
from llmkit_openai_api.pooling.vectors import numbers
from llmkit_openai_api.wire import json_response


def router(services: Services, rules: FieldRules) -> APIRouter:
    classify = APIRouter()

    @classify.post("/classify", response_model=None)
    async def create_classification(body: ClassifyRequest, request: Request) -> Response:
        """The label of each text, and what the model's head gives each label."""
        check_body(services, body, rules, "/classify")
        inputs = await read_inputs(services, body, request)
        pooler = pooler_for(services, "classify")
        results = await pool(
            request,
            pooler,
            body,
            inputs,
            PoolingParams("classify", activate=activation(body)),
            prompt_name=body.prompt_name,
            special=special_tokens(body),
        )
        data = [_verdict(index, result, pooler.spec) for index, result in enumerate(results)]
        return json_response(answer(services, "classify", results, data))

    return classify


def _verdict(index: int, result: PooledText, spec: PoolingSpec) -> dict[str, Any]:
    probs = numbers(result)
    best = int(probs.argmax())
    return {
        "index": index,
        "label": spec.labels[best] if best < len(spec.labels) else None,
        "probs": probs.tolist(),
        "num_classes": len(probs),
    }
