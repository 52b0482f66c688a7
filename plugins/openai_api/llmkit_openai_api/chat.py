"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import ChatRenderer, Parsing, Services, ToolsAsked, read_tools
from llmkit_openai_api.chat_shape import ChatShape
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import unless_gone
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.request import (
    check_model,
    check_sizes,
    check_stream,
    name_field,
    request_context,
    sampling_params,
    wants_usage,
)
from llmkit_openai_api.respond import respond
from llmkit_openai_api.schema import ChatRequest, Conversation, TokenizeRequest

ROUTE = "/v1/chat/completions"
_OFF_LOOP_BYTES = 20_000


def router(services: Services, rules: FieldRules) -> APIRouter:
    chat = APIRouter()

    @chat.post(ROUTE, response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or as a stream of chunks."""
        rules.check(body, ROUTE)
        try:
            usage = wants_usage(body)
            choices = await unless_gone(request.receive, conversation_choices(body, request, services))
            return await respond(
                services,
                request,
                choices,
                lambda: ChatShape(services, body, choices, answer_role(services, body)),
                stream=bool(body.stream),
                usage=usage,
            )
        except RequestError as error:
            name_chat_field(error, body)
            raise

    return chat


async def conversation_choices(
    body: ChatRequest, request: Request, services: Services, *, default_max_tokens: int | None = None
) -> Choices:
    """What answers a conversation, for any route that has one; not started yet. ``default_max_tokens``: where
    the body has no limit; cut to the context, unlike the body's own.

    :raises RequestError: the request is wrong; :func:`name_chat_field` puts in the names of its fields.
    """
    _check(body, services)
    params = sampling_params(
        body,
        services,
        max_tokens=_limit(body)[1],
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    check_stream(body, params)
    services.generator.check_room(params)
    asked = read_tools(body.tools, body.tool_choice)
    parses = body.parse_output is not False
    if not parses and asked.calls in ("required", "named"):
        raise RequestError("parse_output is false, and tool_choice asks for a call", param="parse_output")
    if not parses and body.thinking_token_budget is not None:
        raise RequestError("parse_output is false, and thinking_token_budget needs it", param="parse_output")
    prompt = await render(
        services,
        body,
        request,
        with_tools=bool(asked.tools),
        with_opening=parses and services.reasoning_parser is not None,
    )
    return Choices(
        services,
        {"messages": prompt.text},
        params,
        request_context(body, request, default_max_tokens=default_max_tokens),
        add_special_tokens=bool(body.add_special_tokens),  # the template writes its own
        parsing=_parsing(body, asked, prompt.opening) if parses else None,
    )


def name_chat_field(error: RequestError, body: ChatRequest) -> None:
    """Put in an error about ``body`` what chat calls the field that the front names."""
    logprobs = "logprobs" if body.top_logprobs is None else "top_logprobs"
    name_field(error, body, logprobs=logprobs, max_tokens=_limit(body)[0])


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model gets it."""

    text: str
    """Its special tokens are spelt out."""
    opening: str
    """What of it the answer continues; empty where nobody asked."""


async def render(
    services: Services,
    body: Conversation | TokenizeRequest,
    request: Request,
    *,
    with_tools: bool,
    with_opening: bool = False,
) -> Rendered:
    """The prompt of a conversation.

    :raises RequestError: there is no template, or it refuses these messages.
    """
    asked = _asked_template(body)
    if asked is None and services.chat is None:
        raise RequestError(
            f"the model {services.model.names[0]!r} has no chat template, so it takes no messages; use "
            "/v1/completions, or start the server with --chat-template",
            param="messages",
        )
    check_sizes(services.config.limits, messages=body.messages, tools=body.tools)
    chat = services.chat if asked is None else await asyncio.to_thread(services.renderer, asked)
    assert chat is not None
    # Small bodies are rendered at once; larger ones in a thread, so that the streams of others go on.
    if len(await request.body()) < _OFF_LOOP_BYTES:
        return _render(chat, body, with_tools, with_opening)
    return await asyncio.to_thread(_render, chat, body, with_tools, with_opening)


def answer_role(services: Services, body: ChatRequest) -> str:
    """Whose turn the answer is: that of ``--response-role``, or of the message that it continues."""
    if body.continue_final_message or body.add_generation_prompt is False:
        return body.messages[-1].role
    return services.config.server.response_role


# ---- below: the steps of a request ----


def _check(body: ChatRequest, services: Services) -> None:
    check_model(services, body.model)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs true", param="top_logprobs")
    for position, message in enumerate(body.messages):
        if message.content is None and message.role != "assistant":
            where = f"messages[{position}].content"
            raise RequestError(f"{where}: only an assistant's may be null or absent", param=where)
    name, most = _limit(body)
    if most is not None and most < 1:
        raise RequestError(
            f"{name} is {most}; it must be at least 1: a chat answer has a token",
            param=name,
            code="integer_below_min_value",
        )


def _parsing(body: ChatRequest, asked: ToolsAsked, opening: str) -> Parsing:
    return Parsing(
        tools=asked.tools,
        calls=asked.calls,
        parallel=body.parallel_tool_calls is not False,
        prompt_tail=opening,
        template_args=_template_args(body),
    )


def _asked_template(body: Conversation | TokenizeRequest) -> str | None:
    """The request's own template, which vLLM also takes among the variables."""
    variable = (body.chat_template_kwargs or {}).get("chat_template")
    if body.chat_template is None and variable is not None:
        if not isinstance(variable, str):
            where = "chat_template_kwargs.chat_template"
            raise RequestError(f"{where} must be a string", param=where, code="invalid_type")
        return variable
    return body.chat_template


def _template_args(body: Conversation | TokenizeRequest) -> dict[str, Any]:
    template_args = dict(body.chat_template_kwargs or {})
    if body.chat_template is None:
        template_args.pop("chat_template", None)  # it is the template, not a variable of it
    if body.documents is not None:
        template_args["documents"] = body.documents
    if isinstance(body, Conversation) and body.reasoning_effort is not None:
        template_args.setdefault("reasoning_effort", body.reasoning_effort)
    return template_args


def _render(
    chat: ChatRenderer, body: Conversation | TokenizeRequest, with_tools: bool, with_opening: bool
) -> Rendered:
    messages = [message.model_dump(exclude_none=True) for message in body.messages or ()]
    continued = bool(body.continue_final_message)
    generation_prompt = body.add_generation_prompt
    shared: dict[str, Any] = {
        "tools": body.tools if with_tools else None,
        "continue_final_message": continued,
        "template_args": _template_args(body),
    }
    text = chat.render(
        messages,
        add_generation_prompt=not continued if generation_prompt is None else generation_prompt,
        **shared,
    )
    return Rendered(text, chat.opening(text, messages, **shared) if with_opening else "")


def _limit(body: ChatRequest) -> tuple[str, int | None]:
    """The longest answer and the field that says so; OpenAI's newer name wins."""
    if body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens
