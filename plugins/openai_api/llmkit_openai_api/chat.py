"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import Finished, PositionLogprobs, Services, Usage
from llmkit_openai_api.answer import Answer, finish_reason
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import EventStream, unless_gone
from llmkit_openai_api.logprobs import chat_logprobs
from llmkit_openai_api.request import (
    UnknownFields,
    check_model,
    not_yet,
    refuse_tools,
    refuse_unsupported,
    request_context,
    sampling_params,
    wants_usage,
)
from llmkit_openai_api.schema import ChatRequest, Conversation, Message, TokenizeRequest
from llmkit_openai_api.stream import StreamWriter, frames
from llmkit_openai_api.whole import WholeChoice, fold
from llmkit_openai_api.wire import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    Delta,
    Envelope,
    json_response,
)

ROUTE = "/v1/chat/completions"
_OFF_LOOP_CHARS = 20_000
"""Longer conversations are rendered in a thread, so that the streams of others go on."""

_CHAT_NAMES = {"prompt": "messages", "logprobs": "top_logprobs"}
"""Fields as the front knows them -> as a chat request calls them."""


def router(services: Services, unknown: UnknownFields) -> APIRouter:
    chat = APIRouter()

    @chat.post(ROUTE, response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or as a stream of chunks."""
        unknown.warn(body, ROUTE)
        _check(body, services)
        include_usage = wants_usage(body)
        choices = await unless_gone(request.receive, _submit(body, request, services))
        echo = _echoed(body)
        if body.stream:
            shape = ChatChunks(services, body, echo)
            writer = StreamWriter(shape, include_usage=include_usage)
            return EventStream(frames(choices, writer), choices.aclose)
        folded = await unless_gone(request.receive, fold(choices))
        return json_response(_whole(services, body, echo, folded, choices.usage))

    return chat


async def render_ids(services: Services, body: ChatRequest | TokenizeRequest) -> list[int]:
    """The prompt of a conversation.

    :raises RequestError: there is no template, or it refuses these messages.
    """
    if services.chat is None:
        raise RequestError(
            f"the model {services.model.names[0]!r} has no chat template, so it takes no messages; use "
            "/v1/completions, or start the server with --chat-template",
            param="messages",
        )
    messages = [message.model_dump(exclude_none=True) for message in body.messages or ()]
    template_args = dict(body.chat_template_kwargs or {})
    if isinstance(body, Conversation) and body.reasoning_effort is not None:
        template_args.setdefault("reasoning_effort", body.reasoning_effort)
    continued = bool(body.continue_final_message)
    generation_prompt = body.add_generation_prompt
    options = {
        "add_generation_prompt": not continued if generation_prompt is None else generation_prompt,
        "continue_final_message": continued,
        "template_args": template_args,
    }
    try:
        if _size(body.messages or ()) > _OFF_LOOP_CHARS:
            return await asyncio.to_thread(services.chat.render_ids, messages, **options)
        return services.chat.render_ids(messages, **options)
    except UnicodeEncodeError as error:
        raise RequestError(
            "messages hold half a surrogate pair, which is no text", param="messages"
        ) from error


class ChatChunks:
    """The chunks of a streamed answer; see :class:`llmkit_openai_api.stream.ChunkShape`."""

    def __init__(self, services: Services, body: ChatRequest, echo: str) -> None:
        self._answer = Answer(services, "chatcmpl", "chat.completion.chunk")
        self._with_logprobs = bool(body.logprobs)
        self._echo = echo

    def opening(self, index: int) -> Envelope:
        delta = Delta(role="assistant", content=self._echo)
        return self._answer.wrap([ChatChunkChoice(index=index, delta=delta)])

    def piece(self, index: int, text: str, logprobs: Sequence[PositionLogprobs]) -> Envelope:
        shown = _shown(self._answer, self._with_logprobs, logprobs)
        return self._answer.wrap([ChatChunkChoice(index=index, delta=Delta(content=text), logprobs=shown)])

    def ending(self, index: int, finished: Finished) -> Envelope:
        return self._answer.wrap(
            [
                ChatChunkChoice(
                    index=index,
                    delta=Delta(),
                    finish_reason=finish_reason(finished),
                    stop_reason=finished.stop_reason,
                )
            ]
        )

    def usage(self, usage: Usage) -> Envelope:
        return self._answer.wrap([], usage)


# ---- below: the steps of a request ----


def _check(body: ChatRequest, services: Services) -> None:
    check_model(services, body.model)
    refuse_unsupported(body)
    refuse_tools(body.tools, body.tool_choice)
    if body.modalities not in (None, ["text"]):
        raise not_yet("modalities")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs true", param="top_logprobs")
    for position, message in enumerate(body.messages):
        if message.content is None and message.role != "assistant":
            where = f"messages[{position}].content"
            raise RequestError(f"{where}: only an assistant's may be null or absent", param=where)
    if _limit(body)[1] == 0:
        name = _limit(body)[0]
        raise RequestError(f"{name} is 0; a chat answer has at least one token", param=name)


async def _submit(body: ChatRequest, request: Request, services: Services) -> Choices:
    name, limit = _limit(body)
    params = sampling_params(
        body, services, max_tokens=limit, logprobs=(body.top_logprobs or 0) if body.logprobs else None
    )
    prompt = await render_ids(services, body)
    try:
        return await Choices.submit(services, [prompt], params, request_context(body, request))
    except RequestError as error:
        error.param = {**_CHAT_NAMES, "max_tokens": name}.get(error.param or "", error.param)
        raise


def _limit(body: ChatRequest) -> tuple[str, int | None]:
    """The longest answer and the field that says so; OpenAI's newer name wins."""
    if body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def _echoed(body: ChatRequest) -> str:
    """vLLM's ``echo``: the assistant's message that the answer continues."""
    last = body.messages[-1]
    if not body.echo or last.role != "assistant" or last.content is None:
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(part.text or "" for part in last.content)


def _whole(
    services: Services, body: ChatRequest, echo: str, folded: list[WholeChoice], usage: Usage
) -> Envelope:
    answer = Answer(services, "chatcmpl", "chat.completion")
    return answer.wrap([_choice(answer, body, echo, i, choice) for i, choice in enumerate(folded)], usage)


def _choice(answer: Answer, body: ChatRequest, echo: str, index: int, choice: WholeChoice) -> ChatChoice:
    assert choice.finished is not None, "the front ends every choice"
    return ChatChoice(
        index=index,
        message=ChatMessage(echo + choice.text),
        logprobs=_shown(answer, bool(body.logprobs), choice.logprobs),
        finish_reason=finish_reason(choice.finished),
        stop_reason=choice.finished.stop_reason,
    )


def _shown(answer: Answer, asked: bool, logprobs: Sequence[PositionLogprobs]) -> ChatLogprobs | None:
    return chat_logprobs(answer.tokenizer, logprobs) if asked else None


def _size(messages: Sequence[Message]) -> int:
    def length(content: Any) -> int:
        return (
            len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content or ())
        )

    return sum(length(message.content) for message in messages)
