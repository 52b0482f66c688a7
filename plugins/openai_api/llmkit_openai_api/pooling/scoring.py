"""How alike texts are: ``/score`` in vLLM's shape, ``/rerank`` in Jina's and Cohere's.

A cross-encoder's head reads both texts of a pair at once; of a model that embeds, it is the similarity of two
embeddings.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import PooledText, Pooler, PoolingInput, PoolingParams, Services
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.pooling.bodies import ComparingBody, RerankRequest, ScoreRequest
from llmkit_openai_api.pooling.inputs import (
    activation,
    answer,
    check_body,
    inputs_of,
    pool,
    pooler_for,
    usage,
)
from llmkit_openai_api.pooling.vectors import numbers
from llmkit_openai_api.wire import json_response

_SIDES = (("text_1", "data_1", "queries"), ("text_2", "data_2", "documents", "items"))
"""Names of each side of ``/score``."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One a pair, in order, and what was computed for them."""

    values: list[float]
    results: list[PooledText]


def router(services: Services, rules: FieldRules) -> APIRouter:
    scoring = APIRouter()

    async def score(body: ScoreRequest, request: Request) -> Response:
        """How alike the texts of each pair are."""
        check_body(services, body, rules, "/score")
        first, second = (_side(body, names) for names in _SIDES)
        first, second = _paired(first, second)
        pooler = _scorer(services)
        scores = await _compare(request, pooler, body, first, second)
        data = [
            {"object": "score", "index": index, "score": value} for index, value in enumerate(scores.values)
        ]
        return json_response(answer(services, "score", scores.results, data))

    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Documents by how well they fit a query, best first."""
        check_body(services, body, rules, request.url.path)
        texts = [_document(at, item) for at, item in enumerate(body.documents)]
        documents = [PoolingInput(text, name=f"documents[{at}]") for at, text in enumerate(texts)]
        pooler = _scorer(services)
        query = [PoolingInput(body.query, name="query")]
        scores = await _compare(request, pooler, body, query * len(documents), documents)
        order = sorted(range(len(texts)), key=lambda index: -scores.values[index])
        cohere = request.url.path.endswith("/v2/rerank")
        with_text = body.return_documents if body.return_documents is not None else not cohere
        results = [
            {
                "index": index,
                **({"document": {"text": texts[index]}} if with_text else {}),
                "relevance_score": scores.values[index],
            }
            for index in order[: body.top_n or len(order)]
        ]
        ranked: dict[str, Any] = {"id": f"rerank-{uuid.uuid4().hex}", "results": results}
        if cohere:
            ranked["meta"] = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return json_response(ranked | {"model": services.model.names[0], "usage": usage(scores.results)})

    for path in ("/score", "/v1/score"):
        scoring.add_api_route(path, score, methods=["POST"], response_model=None)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        scoring.add_api_route(path, rerank, methods=["POST"], response_model=None)
    return scoring


def _side(body: ScoreRequest, names: Sequence[str]) -> list[PoolingInput]:
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError(f"give one of {', '.join(names)}", param=given[1] if given else names[0])
    return inputs_of(given[0], getattr(body, given[0]))


def _paired(
    first: list[PoolingInput], second: list[PoolingInput]
) -> tuple[list[PoolingInput], list[PoolingInput]]:
    if len(first) == 1:
        return first * len(second), second
    if len(second) == 1:
        return first, second * len(first)
    if len(first) != len(second):
        name = second[0].name.partition("[")[0]
        raise RequestError(
            f"{name} has {len(second)} texts and the other side {len(first)}; one side may have a single"
            " text, or both as many",
            param=name,
        )
    return first, second


def _document(at: int, item: Any) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        raise RequestError(
            f"documents[{at}] must be a text or an object with a text", param=f"documents[{at}]"
        )
    return text


def _scorer(services: Services) -> Pooler:
    pooler = pooler_for(services, "embed", "classify")
    if "classify" in pooler.spec.tasks and len(pooler.spec.labels) != 1:
        raise RequestError(
            f"the model {services.model.names[0]!r} has {len(pooler.spec.labels)} labels, which are no score"
            " of a pair; /classify gives them",
            param="model",
            code="model_not_supported",
        )
    return pooler


async def _compare(
    request: Request,
    pooler: Pooler,
    body: ComparingBody,
    first: Sequence[PoolingInput],
    second: Sequence[PoolingInput],
) -> Scores:
    if "classify" in pooler.spec.tasks:
        return await _read_pairs(request, pooler, body, first, second)
    unique: dict[Any, PoolingInput] = {}
    for one in (*first, *second):
        unique.setdefault(one.prompt, one)
    cosine = pooler.spec.similarity == "cosine"
    params = PoolingParams("embed", normalize=cosine or pooler.spec.normalize)
    results = await pool(request, pooler, body, list(unique.values()), params)
    vectors = dict(zip(unique, (numbers(result) for result in results), strict=True))
    values = [
        float(np.dot(vectors[one.prompt].astype(np.float64), vectors[other.prompt]))
        for one, other in zip(first, second, strict=True)
    ]
    return Scores(values, results)


async def _read_pairs(
    request: Request,
    pooler: Pooler,
    body: ComparingBody,
    first: Sequence[PoolingInput],
    second: Sequence[PoolingInput],
) -> Scores:
    pairs = [
        PoolingInput(one.prompt, str(other.prompt), name=other.name if len(second) > 1 else one.name)
        for one, other in zip(first, second, strict=True)
    ]
    params = PoolingParams("classify", activate=activation(body))
    results = await pool(request, pooler, body, pairs, params)
    return Scores([float(numbers(result)[0]) for result in results], results)
