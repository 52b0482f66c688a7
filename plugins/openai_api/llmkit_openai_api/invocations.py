"""``POST /invocations``: SageMaker's one path for all, answered by the route whose body it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmkit import RequestError
from llmkit.contracts import Services

_FIELDS = (
    ("messages", "/v1/chat/completions"),
    ("prompt", "/v1/completions"),
    ("query", "/v1/rerank"),
    ("text_1", "/v1/score"),
    ("data_1", "/v1/score"),
    ("queries", "/v1/score"),
    ("input", "/v1/embeddings"),
)
"""The first of these that a body has decides."""
_OF_HEAD = {"none": "/v1/embeddings", "sequence": "/classify", "token": "/pooling"}
"""Where texts go for a model that pools."""


def router(services: Services, routes: ASGIApp) -> APIRouter:
    """``routes`` serve all paths that a body may be meant for."""
    invocations = APIRouter()

    @invocations.post("/invocations", response_model=None)
    async def invoke(body: dict[str, Any], request: Request) -> Response:
        """What the route that has such a body answers: chat, completions, vectors, scores, ranks, classes."""
        return _Elsewhere(routes, _path(services, body), await request.body())

    return invocations


class _Elsewhere(Response):
    """The answer of another path to the same request."""

    def __init__(self, routes: ASGIApp, path: str, body: bytes) -> None:
        super().__init__()
        self._routes = routes
        self._path = path
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting = [self._body]

        async def replay() -> Message:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            return await receive()

        path = scope.get("root_path", "") + self._path
        await self._routes(dict(scope, path=path, raw_path=path.encode()), replay, send)


def _path(services: Services, body: dict[str, Any]) -> str:
    path = next((path for field, path in _FIELDS if field in body), None)
    pooler = services.pooler
    if path is None:
        fields = ", ".join(field for field, _ in _FIELDS)
        raise RequestError(f"the body has none of {fields}, so no route can be told for it", param="body")
    if pooler is None or path not in ("/v1/embeddings", "/v1/chat/completions"):
        return path
    return _OF_HEAD[pooler.spec.head]
