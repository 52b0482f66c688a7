"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import Services, read_tools
from llmkit_openai_api.chat import render
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.request import check_model
from llmkit_openai_api.schema import DetokenizeRequest, TokenizeRequest
from llmkit_openai_api.wire import json_response

_MANY = 4096
"""Tokens from which writing an answer is worth a thread."""


def router(services: Services, rules: FieldRules) -> APIRouter:
    tokens = APIRouter()

    @tokens.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of a text or of a conversation as the model would get them."""
        rules.check(body, "/tokenize")
        check_model(services, body.model)
        ids = await _ids(services, body, request)
        with_text = bool(body.return_token_strs)
        if len(ids) < _MANY:
            return _answer(services, ids, with_text)
        return await asyncio.to_thread(_answer, services, ids, with_text)

    @tokens.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        rules.check(body, "/detokenize")
        check_model(services, body.model)
        return json_response({"prompt": await services.generator.detokenize(body.tokens)})

    return tokens


async def _ids(services: Services, body: TokenizeRequest, request: Request) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    special = body.add_special_tokens
    if body.prompt is not None:
        return await services.generator.tokenize(
            body.prompt, add_special_tokens=True if special is None else special
        )
    asked = read_tools(body.tools)
    rendered = await render(services, body, request, with_tools=bool(asked.tools))
    return await services.generator.tokenize(rendered.text, add_special_tokens=bool(special))


def _answer(services: Services, ids: list[int], with_text: bool) -> Response:
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": services.model.max_model_len,
        "tokens": ids,
        "token_strs": [services.tokenizer.token_text(i) for i in ids] if with_text else None,
    }
    return json_response(answer)
