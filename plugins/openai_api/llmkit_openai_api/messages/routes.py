"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request, Response

from llmkit import Draining, EngineDead, EngineError, RequestError, RequestTimeout
from llmkit.contracts import Services, read_tools
from llmkit_openai_api.chat import conversation_choices, render
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import unless_gone
from llmkit_openai_api.event_stream import EventStream
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.messages.asked import as_chat
from llmkit_openai_api.messages.failures import error_body
from llmkit_openai_api.messages.schema import CountTokensRequest, MessagesRequest
from llmkit_openai_api.messages.writer import MessageWriter
from llmkit_openai_api.request import check_model
from llmkit_openai_api.sse import named_frame
from llmkit_openai_api.wire import json_response

ROUTE = "/v1/messages"
COUNT_ROUTE = f"{ROUTE}/count_tokens"
REQUEST_ID = "x-request-id"
logger = logging.getLogger(__name__)


def router(services: Services) -> APIRouter:
    """``services`` may be incomplete yet: routes read it when they are called."""
    rules = FieldRules(strict=services.config.server.strict_requests)
    messages = APIRouter(tags=["anthropic"])

    @messages.post(ROUTE, response_model=None)
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, whole or as a stream of typed events."""
        rules.check(body, ROUTE)
        check_model(services, body.model)
        response = await _create(body, request, services)
        response.headers["request-id"] = request.headers[REQUEST_ID]
        return response

    @messages.post(COUNT_ROUTE, response_model=None)
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        """How many tokens the prompt of such a message would have."""
        rules.check(body, COUNT_ROUTE)
        check_model(services, body.model)
        chat = as_chat(body, services)
        try:
            asked = read_tools(chat.body.tools, chat.body.tool_choice)
            prompt = await render(services, chat.body, request, with_tools=bool(asked.tools))
            ids = await services.generator.tokenize(prompt.text, add_special_tokens=False)
        except RequestError as error:
            chat.name_field(error)
            raise
        headers = {"request-id": request.headers[REQUEST_ID]}
        response = json_response({"input_tokens": len(ids)})
        response.headers.update(headers)
        return response

    return messages


async def _create(body: MessagesRequest, request: Request, services: Services) -> Response:
    chat = as_chat(body, services)
    try:
        choices = await unless_gone(
            request.receive,
            conversation_choices(chat.body, request, services, default_max_tokens=body.max_tokens),
        )
        try:
            keepalive_s = services.config.server.sse_keepalive
            patience_s = (keepalive_s or None) if body.stream else None
            await unless_gone(request.receive, choices.start(patience_s))
            writer = MessageWriter(
                services.model.names[0],
                services.tokenizer,
                max_tokens=body.max_tokens,
                shows_thinking=body.thinking is None or body.thinking.display != "omitted",
            )
            if body.stream:
                frames = _frames(choices, writer, request.headers[REQUEST_ID])
                return EventStream(frames, choices.aclose, keepalive_s=keepalive_s)
            await unless_gone(request.receive, _read(choices, writer))
        except BaseException:
            await choices.aclose()
            raise
    except RequestError as error:
        chat.name_field(error)
        raise
    return json_response(writer.message(choices.usage))


async def _read(choices: Choices, writer: MessageWriter) -> None:
    async for _, event in choices:
        writer.feed(event)


async def _frames(choices: Choices, writer: MessageWriter, request_id: str) -> AsyncGenerator[bytes, None]:
    """A whole stream. Whoever asked for it closes ``choices``, even if it never began."""
    try:
        events = writer.begin(choices.usage)
        yield b"".join(named_frame(_name(event), event) for event in events)
        async for _, event in choices:
            written = writer.feed(event)
            if written:
                yield b"".join(named_frame(_name(part), part) for part in written)
        yield b"".join(named_frame(_name(event), event) for event in writer.finish(choices.usage))
    except (RequestError, EngineError) as error:
        yield named_frame("error", error_body(_kind(error), str(error), request_id))
    except Exception:  # our own fault or a plugin's: the client is told, in the stream it has
        logger.exception("a stream failed")
        message = "the server failed on this request; its log says why"
        yield named_frame("error", error_body("api_error", message, request_id))


def _name(event: object) -> str:
    return str(type(event).__struct_config__.tag)  # type: ignore[attr-defined]


def _kind(error: RequestError | EngineError) -> str:
    match error:
        case RequestError():
            return "invalid_request_error"
        case EngineDead() | Draining():
            return "overloaded_error"
        case RequestTimeout():
            return "timeout_error"
        case _:
            return "api_error"
