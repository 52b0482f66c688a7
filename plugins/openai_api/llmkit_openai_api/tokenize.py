"""``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from llmkit import RequestError
from llmkit.contracts import Services
from llmkit_openai_api.chat import render_ids
from llmkit_openai_api.request import UnknownFields, check_model, not_yet, refuse_unsupported
from llmkit_openai_api.schema import DetokenizeRequest, TokenizeRequest
from llmkit_openai_api.wire import json_response


def router(services: Services, unknown: UnknownFields) -> APIRouter:
    tokens = APIRouter()

    @tokens.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeRequest) -> Response:
        """Token ids of a text or of a conversation as the model would get them."""
        unknown.warn(body, "/tokenize")
        check_model(services, body.model)
        refuse_unsupported(body)
        ids = await _ids(services, body)
        pieces = [services.tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": services.model.max_model_len,
            "tokens": ids,
            "token_strs": pieces,
        }
        return json_response(answer)

    @tokens.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        unknown.warn(body, "/detokenize")
        check_model(services, body.model)
        size = services.tokenizer.vocab_size
        for position, token_id in enumerate(body.tokens):
            if not 0 <= token_id < size:
                where = f"tokens[{position}]"
                raise RequestError(f"{where} is {token_id}; token ids run from 0 to {size - 1}", param=where)
        return json_response({"prompt": services.tokenizer.decode(body.tokens)})

    return tokens


async def _ids(services: Services, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        special = True if body.add_special_tokens is None else body.add_special_tokens
        return services.tokenizer.encode(body.prompt, add_special_tokens=special)
    if body.tools:
        raise not_yet("tools")
    if body.add_special_tokens:
        raise RequestError(
            "add_special_tokens is only for prompt: the chat template writes its own",
            param="add_special_tokens",
        )
    return await render_ids(services, body)
