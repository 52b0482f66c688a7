"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from llmkit import RequestError
from llmkit.contracts import Finished, FoldedChoice, PositionLogprobs, Services, Usage
from llmkit_openai_api.answer import Answer, finish_reason
from llmkit_openai_api.choices import Choices, Prompt
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
from llmkit_openai_api.respond import respond
from llmkit_openai_api.schema import CompletionRequest
from llmkit_openai_api.structured import name_field
from llmkit_openai_api.wire import CompletionChoice, CompletionLogprobs, Envelope

ROUTE = "/v1/completions"
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for a request that names none; cut to the context."""
MAX_PROMPTS = 1024


def router(services: Services, unknown: UnknownFields) -> APIRouter:
    completions = APIRouter()

    @completions.post(ROUTE, response_model=None)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several, whole or as a stream of chunks."""
        unknown.warn(body, ROUTE)
        prompts = read_prompts(body.prompt)
        _check(body, services)
        choices = _choices(body, prompts, request, services)
        try:
            return await respond(
                request,
                choices,
                lambda: CompletionShape(services, body, list(prompts.values()), choices.count),
                stream=bool(body.stream),
                include_usage=wants_usage(body),
            )
        except RequestError as error:
            name_field(error, body)
            raise

    return completions


def read_prompts(value: Any) -> dict[str, Prompt]:
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
    if len(value) > MAX_PROMPTS:
        raise RequestError(
            f"prompt has {len(value)} prompts; one request may have at most {MAX_PROMPTS}", param="prompt"
        )
    for position, item in enumerate(value):
        if not isinstance(item, str | list):
            raise _not_a_prompt(f"prompt[{position}]", item)
    return {f"prompt[{position}]": item for position, item in enumerate(value)}


class CompletionShape:
    """A streamed or a whole answer; see :class:`llmkit_openai_api.stream.AnswerShape`."""

    def __init__(
        self, services: Services, body: CompletionRequest, prompts: Sequence[Prompt], choices: int
    ) -> None:
        self._answer = Answer(services, "cmpl", "text_completion")
        skip = True if body.skip_special_tokens is None else body.skip_special_tokens
        self._echoes = [_echoed(services, body, prompt) for prompt in prompts]
        self._per_prompt = choices // len(prompts)
        self._logprobs: list[CompletionLogprobsWriter] | None = None
        if body.logprobs is not None:
            self._logprobs = [
                CompletionLogprobsWriter(services.tokenizer, len(self._echo(index)), skip)
                for index in range(choices)
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

    def whole(self, folded: Sequence[FoldedChoice], usage: Usage) -> Envelope:
        choices = []
        for index, choice in enumerate(folded):
            text = self._echo(index) + choice.text
            choices.append(self._ended(index, text, self._shown(index, choice.logprobs), choice.finish))
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


def _choices(
    body: CompletionRequest, prompts: dict[str, Prompt], request: Request, services: Services
) -> Choices:
    params = sampling_params(body, services, max_tokens=body.max_tokens, logprobs=body.logprobs)
    context = request_context(body, request, default_max_tokens=DEFAULT_MAX_TOKENS)
    special = True if body.add_special_tokens is None else body.add_special_tokens
    return Choices(services, prompts, params, context, add_special_tokens=special)


def _echoed(services: Services, body: CompletionRequest, prompt: Prompt) -> str:
    if not body.echo:
        return ""
    return prompt if isinstance(prompt, str) else services.tokenizer.decode(prompt)


def _not_a_prompt(where: str, value: Any) -> RequestError:
    return RequestError(
        f"{where} must be a text or a list of token ids, not {type(value).__name__}", param=where
    )
