"""``POST /v1/completions``."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import Services
from llmkit_openai_api.choices import Choices, Prompt
from llmkit_openai_api.completion_shape import CompletionShape
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.request import (
    check_model,
    check_stream,
    name_field,
    request_context,
    sampling_params,
    wants_usage,
)
from llmkit_openai_api.respond import respond
from llmkit_openai_api.schema import CompletionRequest

ROUTE = "/v1/completions"
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for a request that names none; cut to the context."""


def router(services: Services, rules: FieldRules) -> APIRouter:
    completions = APIRouter()

    @completions.post(ROUTE, response_model=None)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several, whole or as a stream of chunks."""
        rules.check(body, ROUTE)
        prompts = read_prompts(body.prompt, services.config.limits.max_prompts)
        check_model(services, body.model)
        choices = _choices(body, prompts, request, services)
        try:
            return await respond(
                services,
                request,
                choices,
                lambda: CompletionShape(services, body, list(prompts.values()), choices),
                stream=bool(body.stream),
                usage=wants_usage(body),
            )
        except RequestError as error:
            name_field(error, body)
            raise

    return completions


def read_prompts(value: Any, most: int) -> dict[str, Prompt]:
    """A text, a list of texts, a list of token ids, or a list of those, as prompts by their place.

    What is in them is checked with the rest of the request.
    :raises RequestError: it is none of them, or too many.
    """
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, list):
        raise _not_a_prompt("prompt", value)
    if not value:
        raise RequestError("prompt is an empty list; give at least one token or text", param="prompt")
    if type(value[0]) is int:
        return {"prompt": value}
    if len(value) > most:
        raise RequestError(
            f"prompt has {len(value)} prompts; one request may have at most {most} (--max-prompts)",
            param="prompt",
            code="array_above_max_length",
        )
    for position, item in enumerate(value):
        if not isinstance(item, str | list):
            raise _not_a_prompt(f"prompt[{position}]", item)
    return {f"prompt[{position}]": item for position, item in enumerate(value)}


# ---- below: the steps of a request ----


def _choices(
    body: CompletionRequest, prompts: dict[str, Prompt], request: Request, services: Services
) -> Choices:
    params = sampling_params(body, services, max_tokens=body.max_tokens, logprobs=body.logprobs)
    if body.echo and body.logprobs is not None and params.prompt_logprobs is None:
        params = msgspec.structs.replace(params, prompt_logprobs=body.logprobs)
    check_stream(body, params)
    context = request_context(body, request, default_max_tokens=DEFAULT_MAX_TOKENS)
    special = True if body.add_special_tokens is None else body.add_special_tokens
    return Choices(services, prompts, params, context, add_special_tokens=special)


def _not_a_prompt(where: str, value: Any) -> RequestError:
    kind = "an object" if isinstance(value, dict) else json.dumps(value)
    return RequestError(f"{where} must be a text or a list of token ids, not {kind:.60}", param=where)
