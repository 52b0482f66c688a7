"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import Finished, PositionLogprobs, Services, Usage
from llmkit_openai_api.answer import Answer, finish_reason
from llmkit_openai_api.choices import Choices, Prompt
from llmkit_openai_api.disconnect import EventStream, unless_gone
from llmkit_openai_api.logprobs import CompletionLogprobsWriter
from llmkit_openai_api.request import (
    UnknownFields,
    check_model,
    not_yet,
    refuse_unsupported,
    request_context,
    sampling_params,
    wants_usage,
)
from llmkit_openai_api.schema import CompletionRequest
from llmkit_openai_api.stream import StreamWriter, frames
from llmkit_openai_api.whole import WholeChoice, fold
from llmkit_openai_api.wire import CompletionChoice, CompletionLogprobs, Envelope, json_response

ROUTE = "/v1/completions"
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for a request that names none."""
MAX_PROMPTS = 1024


def router(services: Services, unknown: UnknownFields) -> APIRouter:
    completions = APIRouter()

    @completions.post(ROUTE, response_model=None)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several, whole or as a stream of chunks."""
        unknown.warn(body, ROUTE)
        prompts = read_prompts(body.prompt)
        _check(body, services)
        include_usage = wants_usage(body)
        choices = await unless_gone(request.receive, _submit(body, prompts, request, services))
        shape = CompletionShape(services, body, prompts, choices)
        if body.stream:
            writer = StreamWriter(shape, include_usage=include_usage)
            return EventStream(frames(choices, writer), choices.aclose)
        folded = await unless_gone(request.receive, fold(choices))
        return json_response(shape.whole(folded, choices.usage))

    return completions


def read_prompts(value: Any) -> list[Prompt]:
    """A text, a list of texts, a list of token ids, or a list of those, as a list of prompts.

    Which ids the model knows is checked with the rest of the request.
    :raises RequestError: it is none of them, or too many.
    """
    if isinstance(value, str):
        return [_text(value, "prompt")]
    if not isinstance(value, list):
        raise _not_a_prompt("prompt", value)
    if not value:
        raise RequestError("prompt is an empty list; give at least one token or text", param="prompt")
    if _is_id(value[0]):
        return [_ids(value, "prompt")]
    if len(value) > MAX_PROMPTS:
        raise RequestError(
            f"prompt has {len(value)} prompts; one request may have at most {MAX_PROMPTS}", param="prompt"
        )
    prompts: list[Prompt] = []
    for position, item in enumerate(value):
        where = f"prompt[{position}]"
        if isinstance(item, str):
            prompts.append(_text(item, where))
        elif isinstance(item, list):
            prompts.append(_ids(item, where))
        else:
            raise _not_a_prompt(where, item)
    return prompts


class CompletionShape:
    """A streamed or a whole answer; see :class:`llmkit_openai_api.stream.ChunkShape`."""

    def __init__(
        self, services: Services, body: CompletionRequest, prompts: Sequence[Prompt], choices: Choices
    ) -> None:
        self._answer = Answer(services, "cmpl", "text_completion")
        skip = True if body.skip_special_tokens is None else body.skip_special_tokens
        self._echoes = [_echoed(services, body, prompt) for prompt in prompts]
        self._per_prompt = choices.count // len(prompts)
        self._logprobs: list[CompletionLogprobsWriter] | None = None
        if body.logprobs is not None:
            self._logprobs = [
                CompletionLogprobsWriter(services.tokenizer, len(self._echo(index)), skip)
                for index in range(choices.count)
            ]

    def opening(self, index: int) -> Envelope | None:
        echo = self._echo(index)
        return self._answer.wrap([CompletionChoice(index=index, text=echo)]) if echo else None

    def piece(self, index: int, text: str, logprobs: Sequence[PositionLogprobs]) -> Envelope:
        shown = self._shown(index, logprobs)
        return self._answer.wrap([CompletionChoice(index=index, text=text, logprobs=shown)])

    def ending(self, index: int, finished: Finished) -> Envelope:
        return self._answer.wrap([self._ended(index, "", None, finished)])

    def usage(self, usage: Usage) -> Envelope:
        return self._answer.wrap([], usage)

    def whole(self, folded: Sequence[WholeChoice], usage: Usage) -> Envelope:
        choices = []
        for index, choice in enumerate(folded):
            assert choice.finished is not None, "the front ends every choice"
            text = self._echo(index) + choice.text
            choices.append(self._ended(index, text, self._shown(index, choice.logprobs), choice.finished))
        return self._answer.wrap([*choices], usage)

    def _ended(
        self, index: int, text: str, logprobs: CompletionLogprobs | None, finished: Finished
    ) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=finish_reason(finished),
            stop_reason=finished.stop_reason,
        )

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._per_prompt]

    def _shown(self, index: int, logprobs: Sequence[PositionLogprobs]) -> CompletionLogprobs | None:
        return self._logprobs[index].feed(logprobs) if self._logprobs is not None else None


# ---- below: the steps of a request ----


def _check(body: CompletionRequest, services: Services) -> None:
    check_model(services, body.model)
    refuse_unsupported(body)
    if body.suffix:
        raise not_yet("suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            f"best_of is {body.best_of}; only the value of n ({body.n or 1}) is supported", param="best_of"
        )
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "echo together with logprobs is not supported yet: prompt tokens have no logprobs here",
            param="echo",
        )


async def _submit(
    body: CompletionRequest, prompts: Sequence[Prompt], request: Request, services: Services
) -> Choices:
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(body, services, max_tokens=max_tokens, logprobs=body.logprobs)
    return await Choices.submit(services, prompts, params, request_context(body, request))


def _echoed(services: Services, body: CompletionRequest, prompt: Prompt) -> str:
    if not body.echo:
        return ""
    return prompt if isinstance(prompt, str) else services.tokenizer.decode(prompt)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} holds half a surrogate pair, which is no text", param=where) from error
    return text


def _ids(ids: list[Any], where: str) -> list[int]:
    if not ids:
        raise RequestError(f"{where} is an empty list; give at least one token", param=where)
    for position, token_id in enumerate(ids):
        if not _is_id(token_id):
            raise _not_a_prompt(f"{where}[{position}]", token_id, "a token id, which is an integer")
    return ids


def _not_a_prompt(where: str, value: Any, wanted: str = "a text or a list of token ids") -> RequestError:
    return RequestError(f"{where} must be {wanted}, not {type(value).__name__}", param=where)
