"""Pooler: from texts to what the model makes of each, one request end to end in the front process."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from llmkit.config import Config
from llmkit.contracts import (
    AddRequest,
    EngineClient,
    PairTokenizer,
    PooledText,
    PoolingInput,
    PoolingParams,
    PoolingSpec,
    RequestContext,
    SamplingParams,
    StepOutput,
    Tokenizer,
    Usage,
)
from llmkit.errors import ContextLengthExceeded, EngineError, RequestError, RequestTimeout
from llmkit.frontend.check import check_fits, check_priority, check_salt, check_timeout, check_truncation
from llmkit.frontend.fields import check_text, check_token_ids, integer
from llmkit.frontend.generate import FrontGenerator
from llmkit.frontend.observers import Observers, RequestNotes
from llmkit.frontend.prepare import Preparer
from llmkit.frontend.requests import Limits, caller_keys
from llmkit.text import listing
from llmkit.types import FinishReason

_STEPS_AHEAD = 2
"""Inputs of one request that the engine has at once, in steps of the most rows: enough to keep it busy, few
enough that other requests get their turn."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """One input, tokenized."""

    name: str
    ids: Sequence[int]
    second: int | None = None


class FrontPooler:
    """Checks and queues requests for a model that pools; ``contracts.Pooler``.

    ``door`` is where every request enters: it refuses this one's too, and has the room for both.
    """

    def __init__(
        self,
        client: EngineClient,
        door: FrontGenerator,
        tokenizer: Tokenizer,
        limits: Limits,
        config: Config,
        preparer: Preparer,
        spec: PoolingSpec,
        observers: Observers,
    ) -> None:
        self.spec = spec
        self._client = client
        self._door = door
        self._tokenizer = tokenizer
        self._limits = limits
        self._preparer = preparer
        self._observers = observers
        self._step_tokens = config.scheduler.max_num_batched_tokens
        self._window = min(_STEPS_AHEAD * config.scheduler.max_num_seqs, door.room.capacity)
        self._timeout_s = config.server.request_timeout
        self._policy = config.scheduler.scheduling_policy

    async def pool(
        self,
        inputs: Sequence[PoolingInput],
        params: PoolingParams,
        context: RequestContext | None = None,
        *,
        truncate: int | None = None,
        add_special_tokens: bool = True,
        prompt_name: str | None = None,
    ) -> list[PooledText]:
        """As ``contracts.Pooler.pool``."""
        context = context or RequestContext()
        self._door.check_open()
        check_priority(context.priority, self._policy)
        check_salt(context.cache_salt)
        params = self._checked(params)
        most = self._most(truncate)
        before = self._prompt(prompt_name)
        place = self._door.room.enter(min(len(inputs), self._window), "input")
        try:
            async with self._deadline(context):
                tokens = await asyncio.to_thread(
                    self._tokenize, inputs, before, most, special=add_special_tokens
                )
                requests = [await self._request(one, params, context) for one in tokens]
                place.charge(context.caller, sum(len(request.prompt_ids) for request in requests), 0)
                self._door.check_open()
                outputs = await self._compute(requests)
        finally:
            place.close()
        return [_result(request, output) for request, output in zip(requests, outputs, strict=True)]

    # ---- checks ----

    def _checked(self, params: PoolingParams) -> PoolingParams:
        """With what follows from the model."""
        spec = self.spec
        if params.task not in spec.tasks:
            raise RequestError(
                f"task is {params.task!r}; this model can {listing(spec.tasks)}",
                param="task",
                code="unsupported_parameter",
            )
        if params.dimensions is not None:
            self._check_dimensions(params.dimensions)
        whole = spec.type != "last" or params.task in ("token_embed", "token_classify")
        return msgspec.structs.replace(params, whole=whole)

    def _check_dimensions(self, dimensions: int) -> None:
        spec = self.spec
        if not spec.matryoshka:
            raise RequestError(
                f"dimensions is {dimensions}; this model does not say that its embeddings can be cut. Leave"
                " it out",
                param="dimensions",
                code="unsupported_parameter",
            )
        integer("dimensions", dimensions, 1, *(() if spec.size is None else (spec.size,)))
        if spec.dimensions and dimensions not in spec.dimensions:
            raise RequestError(
                f"dimensions is {dimensions}; this model's embeddings can be cut to"
                f" {listing(map(str, spec.dimensions))}",
                param="dimensions",
                code="invalid_value",
            )

    def _most(self, truncate: int | None) -> int | None:
        """Tokens to keep of each input."""
        check_truncation(truncate)
        if truncate is None or truncate == -1:
            return None if truncate is None else self._limits.max_model_len
        integer("truncate_prompt_tokens", truncate, 1, self._limits.max_model_len)
        return truncate

    def _prompt(self, name: str | None) -> str:
        """What is put before each text."""
        spec = self.spec
        name = spec.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in spec.prompts:
            known = listing(spec.prompts) if spec.prompts else "it has none"
            raise RequestError(
                f"prompt_name is {name[:60]!r}; prompts of this model: {known}",
                param="prompt_name",
                code="invalid_value",
            )
        text = spec.prompts[name]
        if text and spec.type == "mean" and not spec.prompt_counts:
            raise RequestError(
                f"prompt_name is {name!r}; this model leaves its prompts' tokens out of the mean, which is"
                " not supported. Put what is to count into the text",
                param="prompt_name",
                code="unsupported_parameter",
            )
        return text

    # ---- texts ----

    def _tokenize(
        self, inputs: Sequence[PoolingInput], before: str, most: int | None, *, special: bool
    ) -> list[_Tokens]:
        """In a thread: a request may have thousands of texts."""
        return [self._tokens(one, before, most, special) for one in inputs]

    def _tokens(self, one: PoolingInput, before: str, most: int | None, special: bool) -> _Tokens:
        second = None
        ids: Sequence[int]
        if not isinstance(one.prompt, str):
            ids = list(one.prompt if most is None else one.prompt[:most])
        elif one.second is not None:
            ids, second = self._pair(one, one.prompt, one.second, most)
        else:
            ids = self._text(one.name, before + one.prompt, most, special)
        self._check_ids(one.name, ids)
        return _Tokens(one.name, ids, second)

    def _text(self, name: str, text: str, most: int | None, special: bool) -> list[int]:
        text = self._read(name, text, whole=most is None)
        ids = self._tokenizer.encode(text, add_special_tokens=special)
        if most is None or len(ids) <= most:
            return ids
        if not special:
            return ids[:most]
        # The text is cut, not the special tokens around it.
        bare = self._tokenizer.encode(text, add_special_tokens=False)
        around = len(ids) - len(bare)
        begin = next((at for at in range(around + 1) if ids[at : at + len(bare)] == bare), None)
        if begin is None or around >= most:
            return ids[:most]
        return ids[: begin + most - around] + ids[begin + len(bare) :]

    def _pair(
        self, one: PoolingInput, first: str, second: str, most: int | None
    ) -> tuple[list[int], int | None]:
        first, second = (self._read(one.name, text, whole=most is None) for text in (first, second))
        if not hasattr(self._tokenizer, "encode_pair"):
            raise RequestError("this server's tokenizer joins no pairs of texts", param=one.name)
        return cast("PairTokenizer", self._tokenizer).encode_pair(first, second, most)

    def _read(self, name: str, text: str, *, whole: bool) -> str:
        check_text(name, text)
        if whole:
            try:
                check_fits(text, self._tokenizer.longest_token, self._limits.max_model_len)
            except ContextLengthExceeded as error:
                error.param = name
                raise
        return text.lower() if self.spec.lower_case else text

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        check_token_ids(name, ids, self._limits.vocab_size)
        longest = self._limits.max_model_len
        if not ids:
            raise RequestError(
                f"{name} is empty; give at least one token (this tokenizer adds none by itself)",
                param=name,
                code="invalid_value",
            )
        if len(ids) > longest:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {longest} tokens and {name} has {len(ids)}; shorten"
                " it, or have it cut with truncate_prompt_tokens.",
                param=name,
            )

    # ---- the engine ----

    async def _request(self, one: _Tokens, params: PoolingParams, context: RequestContext) -> AddRequest:
        if params.whole and len(one.ids) > max(self._step_tokens, self._whole_limit):
            raise ContextLengthExceeded(
                f"{one.name} has {len(one.ids)} tokens; what is asked of each token is computed in one step,"
                f" which holds {self._step_tokens} (--max-num-batched-tokens)",
                param=one.name,
            )
        silent = SamplingParams(max_tokens=0)
        attachments = (await self._preparer.run(one.ids, silent, context)).attachments
        return AddRequest(
            request_id=uuid.uuid4().hex,
            prompt_ids=list(one.ids),
            params=silent,
            seed=0,
            max_tokens=0,
            priority=context.priority,
            arrival_s=time.time(),
            cache_salt=context.cache_salt,
            cache_keys=caller_keys(attachments, context, self._limits),
            plugin_data=attachments.plugin_data,
            caller=context.caller,
            pooling=msgspec.structs.replace(params, second=one.second),
        )

    @property
    def _whole_limit(self) -> int:
        """Tokens that a step is made to hold anyway, of models that pool all states."""
        return 0 if self.spec.type == "last" else self._limits.max_model_len

    async def _compute(self, requests: Sequence[AddRequest]) -> list[StepOutput]:
        """Send them all, a window's worth at a time; whatever happens, none is left in the engine."""
        outputs: dict[int, StepOutput] = {}
        notes = RequestNotes(requests[0].request_id, len(requests), 0, time.monotonic(), self._observers.tell)
        waiting = iter(range(len(requests)))

        async def follow() -> None:
            for index in waiting:
                outputs[index] = await self._last_output(requests[index])
                notes.output(outputs[index], 0)

        tasks = [asyncio.create_task(follow()) for _ in range(min(self._window, len(requests)))]
        failed = FinishReason.ABORT
        try:
            await asyncio.gather(*tasks)
        except EngineError:
            failed = FinishReason.ERROR
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            usage = Usage(
                sum(len(request.prompt_ids) for request in requests),
                0,
                sum(output.cached_tokens for output in outputs.values()),
            )
            for index in range(len(requests)):
                notes.end(index, FinishReason.STOP if index in outputs else failed, usage, 0)
        return [outputs[index] for index in range(len(requests))]

    async def _last_output(self, request: AddRequest) -> StepOutput:
        """:raises EngineError: it ended without a result."""
        stream = self._client.stream(request)
        try:
            async for output in stream:
                if output.pooled is not None:
                    return output
                if output.finish is not None:
                    raise EngineError(output.error or "the engine ended the request before it was computed")
        finally:
            await stream.aclose()
        raise EngineError("the engine ended the request's outputs without a result")

    @contextlib.asynccontextmanager
    async def _deadline(self, context: RequestContext) -> AsyncIterator[None]:
        """:raises RequestTimeout: the body took longer than the request may."""
        check_timeout(context.timeout_s)
        allowed = [seconds for seconds in (self._timeout_s, context.timeout_s) if seconds is not None]
        try:
            async with asyncio.timeout(min(allowed, default=None)) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeout(
                f"the request did not end within the {min(allowed):g} s that it may take"
                " (--request-timeout, or X-Request-Timeout where that is less)"
            ) from None


def _result(request: AddRequest, output: StepOutput) -> PooledText:
    assert output.pooled is not None
    return PooledText(len(request.prompt_ids), output.cached_tokens, output.pooled.data, output.pooled.width)
