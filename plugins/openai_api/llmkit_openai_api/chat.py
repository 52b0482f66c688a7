"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import (
    ChatRenderer,
    Finished,
    FoldedChoice,
    PositionLogprobs,
    PromptLogprobs,
    Services,
    Tokens,
    Usage,
)
from llmkit_openai_api.answer import Answer, finish_reason
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import unless_gone
from llmkit_openai_api.logprobs import chat_logprobs, names, prompt_logprobs
from llmkit_openai_api.request import (
    UnknownFields,
    check_model,
    check_stream,
    name_field,
    not_yet,
    refuse_tools,
    refuse_unsupported,
    request_context,
    sampling_params,
    wants_usage,
)
from llmkit_openai_api.respond import respond
from llmkit_openai_api.schema import ChatRequest, Conversation, TokenizeRequest
from llmkit_openai_api.wire import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    Delta,
    Envelope,
)

ROUTE = "/v1/chat/completions"
_OFF_LOOP_BYTES = 20_000


def router(services: Services, unknown: UnknownFields) -> APIRouter:
    chat = APIRouter()

    @chat.post(ROUTE, response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or as a stream of chunks."""
        unknown.warn(body, ROUTE)
        _check(body, services)
        include_usage = wants_usage(body)
        try:
            choices = await unless_gone(request.receive, _choices(body, request, services))
            return await respond(
                request,
                choices,
                lambda: ChatShape(services, body, choices),
                stream=bool(body.stream),
                include_usage=include_usage,
            )
        except RequestError as error:
            name_field(error, body, logprobs="top_logprobs", max_tokens=_limit(body)[0])
            raise

    return chat


async def render(services: Services, body: ChatRequest | TokenizeRequest, request: Request) -> str:
    """The prompt of a conversation as text; its special tokens are spelt out.

    :raises RequestError: there is no template, or it refuses these messages.
    """
    if services.chat is None:
        raise RequestError(
            f"the model {services.model.names[0]!r} has no chat template, so it takes no messages; use "
            "/v1/completions, or start the server with --chat-template",
            param="messages",
        )
    # Small bodies are rendered at once; larger ones in a thread, so that the streams of others go on.
    if len(await request.body()) < _OFF_LOOP_BYTES:
        return _render(services.chat, body)
    return await asyncio.to_thread(_render, services.chat, body)


class ChatShape:
    """A streamed or a whole answer; see :class:`llmkit_openai_api.stream.AnswerShape`."""

    def __init__(self, services: Services, body: ChatRequest, choices: Choices) -> None:
        """``choices`` have started: the prompt is known as the model gets it."""
        self._answer = Answer(services, "chatcmpl", "chat.completion" + (".chunk" if body.stream else ""))
        self._choices = choices
        self._name = names(services.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._with_logprobs = bool(body.logprobs)
        self._with_ids = bool(body.return_token_ids)
        self.shows_tokens = self._with_ids or self._with_logprobs
        self._echo = _echoed(body)

    def opening(self, index: int, prompt: PromptLogprobs | None) -> Envelope:
        delta = Delta(role="assistant", content=self._echo)
        return self._answer.wrap([ChatChunkChoice(index=index, delta=delta)], **self._about_prompt(None))

    def piece(self, index: int, text: str, tokens: Tokens) -> Envelope:
        choice = ChatChunkChoice(
            index=index,
            delta=Delta(content=text),
            logprobs=self._shown(tokens.logprobs),
            **self._ids(tokens.token_ids),
        )
        return self._answer.wrap([choice])

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

    def whole(self, folded: Sequence[FoldedChoice], usage: Usage) -> Envelope:
        choices = [self._choice(index, choice) for index, choice in enumerate(folded)]
        return self._answer.wrap([*choices], usage, **self._about_prompt(folded[0].prompt_logprobs))

    def _choice(self, index: int, choice: FoldedChoice) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=ChatMessage(self._echo + choice.text),
            logprobs=self._shown(choice.logprobs),
            finish_reason=finish_reason(choice.finish),
            stop_reason=choice.finish.stop_reason,
            **self._ids(choice.token_ids),
        )

    def _shown(self, logprobs: Sequence[PositionLogprobs]) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        return chat_logprobs(self._answer.tokenizer, logprobs, self._name)

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _about_prompt(self, logprobs: Sequence[PositionLogprobs] | None) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        if self._with_ids:
            asked["prompt_token_ids"] = list(self._choices.prompt_ids(0))
        if logprobs is not None:
            asked["prompt_logprobs"] = prompt_logprobs(self._answer.tokenizer, logprobs)
        return asked


# ---- below: the steps of a request ----


def _check(body: ChatRequest, services: Services) -> None:
    check_model(services, body.model)
    refuse_unsupported(body)
    refuse_tools(body.tools, body.tool_choice)
    if body.modalities not in (None, ["text"]):
        raise not_yet("modalities")
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs true", param="top_logprobs")
    for position, message in enumerate(body.messages):
        if message.content is None and message.role != "assistant":
            where = f"messages[{position}].content"
            raise RequestError(f"{where}: only an assistant's may be null or absent", param=where)
    if _limit(body)[1] == 0:
        name = _limit(body)[0]
        raise RequestError(f"{name} is 0; a chat answer has at least one token", param=name)


async def _choices(body: ChatRequest, request: Request, services: Services) -> Choices:
    params = sampling_params(
        body,
        services,
        max_tokens=_limit(body)[1],
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    check_stream(body, params)
    services.generator.check_room(params.num_sequences)
    prompt = await render(services, body, request)
    # The template writes its own special tokens.
    special = bool(body.add_special_tokens)
    context = request_context(body, request)
    return Choices(services, {"messages": prompt}, params, context, add_special_tokens=special)


def _render(chat: ChatRenderer, body: ChatRequest | TokenizeRequest) -> str:
    template_args = dict(body.chat_template_kwargs or {})
    if isinstance(body, Conversation) and body.reasoning_effort is not None:
        template_args.setdefault("reasoning_effort", body.reasoning_effort)
    continued = bool(body.continue_final_message)
    generation_prompt = body.add_generation_prompt
    return chat.render(
        [message.model_dump(exclude_none=True) for message in body.messages or ()],
        add_generation_prompt=not continued if generation_prompt is None else generation_prompt,
        continue_final_message=continued,
        template_args=template_args,
    )


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
