"""What the pooling routes have in common: inputs, the model that is to serve them, and the way to it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from llmkit import RequestError
from llmkit.contracts import (
    PooledText,
    Pooler,
    PoolingInput,
    PoolingParams,
    PoolingTask,
    Services,
)
from llmkit_openai_api.chat import render
from llmkit_openai_api.disconnect import unless_gone
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.pooling.bodies import MAX_INPUTS, PoolingBody, TextsBody
from llmkit_openai_api.request import check_model, request_context

CAN: dict[PoolingTask, str] = {
    "embed": "embeds texts",
    "token_embed": "embeds each token of a text",
    "classify": "classifies texts",
    "token_classify": "classifies each token of a text",
}


def check_body(services: Services, body: PoolingBody, rules: FieldRules, route: str) -> None:
    """:raises RequestError: another model is asked for, or something that is not here."""
    rules.check(body, route)
    check_model(services, body.model)


def pooler_for(services: Services, *tasks: PoolingTask) -> Pooler:
    """:raises RequestError: the model does none of these."""
    pooler, name = services.pooler, services.model.names[0]
    if pooler is None:
        raise RequestError(
            f"the model {name!r} generates text and has no embeddings; serve a model that embeds, or start"
            " the server with --runner pooling",
            param="model",
            code="model_not_supported",
        )
    if not set(tasks) & set(pooler.spec.tasks):
        does = " and ".join(CAN[task] for task in pooler.spec.tasks)
        wanted = " or ".join(CAN[task] for task in tasks)
        raise RequestError(
            f"the model {name!r} {does}; none that {wanted} is served",
            param="model",
            code="model_not_supported",
        )
    return pooler


async def read_inputs(services: Services, body: TextsBody, request: Request) -> list[PoolingInput]:
    """Of ``input`` or ``messages``. What is in them is checked with the rest of the request.

    :raises RequestError: neither or both are given, or they are none.
    """
    if (body.input is None) == (body.messages is None):
        raise RequestError("give either input or messages", param="input")
    if body.messages is None:
        return inputs_of("input", body.input, ids=True)
    if services.chat is None:
        raise RequestError(
            f"the model {services.model.names[0]!r} has no chat template, so it takes no messages; use input",
            param="messages",
        )
    conversation = body.conversation(body.messages)
    rendered = await render(services, conversation, request, with_tools=False)
    return [PoolingInput(rendered.text, name="messages")]


def inputs_of(field: str, value: Any, *, ids: bool = False) -> list[PoolingInput]:
    """A text or a list of them; with ``ids`` also a list of token ids, or a list of those."""
    if isinstance(value, str):
        return [PoolingInput(value, name=field)]
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field} must be a text or a list of texts that is not empty", param=field)
    if ids and type(value[0]) is int:
        return [PoolingInput(value, name=field)]
    if len(value) > MAX_INPUTS:
        raise RequestError(
            f"{field} has {len(value)} inputs; one request may have at most {MAX_INPUTS}",
            param=field,
            code="array_above_max_length",
        )
    for at, item in enumerate(value):
        if not isinstance(item, (str, list) if ids else str):
            kind = "a text or a list of token ids" if ids else "a text"
            raise RequestError(f"{field}[{at}] must be {kind}", param=f"{field}[{at}]")
    return [PoolingInput(item, name=f"{field}[{at}]") for at, item in enumerate(value)]


def activation(body: Any) -> bool:
    """``use_activation`` or its older name; true where nothing is said."""
    given = body.use_activation if body.use_activation is not None else getattr(body, "activation", None)
    return True if given is None else given


async def pool(
    request: Request,
    pooler: Pooler,
    body: PoolingBody,
    inputs: Sequence[PoolingInput],
    params: PoolingParams,
    *,
    prompt_name: str | None = None,
    special: bool = True,
) -> list[PooledText]:
    """:raises RequestError: the request is wrong. :raises EngineError: the engine failed."""
    try:
        return await unless_gone(
            request.receive,
            pooler.pool(
                inputs,
                params,
                request_context(body, request),
                truncate=body.truncate_prompt_tokens,
                add_special_tokens=special,
                prompt_name=prompt_name,
            ),
        )
    except RequestError as error:
        if error.param == "timeout":
            error.param = "X-Request-Timeout"
        raise


def special_tokens(body: TextsBody) -> bool:
    """Whether texts get those that the tokenizer adds."""
    if body.add_special_tokens is None:
        return body.messages is None
    return body.add_special_tokens


def answer(services: Services, prefix: str, results: Sequence[PooledText], data: list[Any]) -> dict[str, Any]:
    """A list of ``data`` in OpenAI's shape."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": services.model.names[0],
        "data": data,
        "usage": usage(results),
    }


def usage(results: Sequence[PooledText]) -> dict[str, Any]:
    tokens = sum(result.num_tokens for result in results)
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": sum(result.cached_tokens for result in results)},
    }
