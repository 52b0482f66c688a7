"""Generator: from a prompt to events, one request end to end in the front process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

from llmkit.config import Config
from llmkit.contracts import EngineClient, Generation, Parsing, RequestContext, SamplingParams, Tokenizer
from llmkit.errors import EngineError, RequestError, RequestTimeout
from llmkit.frontend.beam_generation import BeamGeneration
from llmkit.frontend.best_of import BestOf
from llmkit.frontend.check import (
    check_choices,
    check_priority,
    check_prompt,
    check_prompt_tokens,
    check_timeout,
)
from llmkit.frontend.generation import Accepted, Deadline, EngineGeneration
from llmkit.frontend.grammars import GrammarCompiler
from llmkit.frontend.observers import Observers
from llmkit.frontend.parsing import AnswerParsers, Formats, thinking_of
from llmkit.frontend.prepare import Preparer
from llmkit.frontend.requests import Attachments, Limits, bad_word_ids, make_requests, truncated
from llmkit.frontend.room import Place, Room
from llmkit.frontend.stages import Stages
from llmkit.frontend.texts import Texts

logger = logging.getLogger(__name__)
LOGGED_TOKENS = 1024
"""Of a prompt, its first, where prompts are logged."""


class FrontGenerator:
    """Checks and queues requests; owns the door to the engine.

    At most ``max_num_seqs + max_queue`` choices are in flight: so many run and wait at most. They count
    from before their prompt is tokenized, so that a full server puts no work into what it refuses.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        limits: Limits,
        config: Config,
        preparer: Preparer,
        observers: Observers | None = None,
        grammars: GrammarCompiler | None = None,
        formats: Formats | None = None,
        stages: Stages | None = None,
        refusal: str | None = None,
    ) -> None:
        """Without ``grammars``, structured output is refused. ``refusal``: why nothing is generated."""
        self._refusal = refusal
        self._formats = formats or Formats(tokenizer)
        self._stages = stages or Stages()
        self._client = client
        self._tokenizer = tokenizer
        self._texts = Texts(tokenizer, limits.max_model_len, limits.bounds.max_prompt_chars)
        self._limits = limits
        self._preparer = preparer
        self._observers = observers or Observers()
        self._grammars = grammars
        self.room = Room(
            config.scheduler.max_num_seqs + config.scheduler.max_queue, config.scheduler.max_tokens_per_key
        )
        self._timeout_s = config.server.request_timeout
        self._policy = config.scheduler.scheduling_policy
        self._logs_requests = config.server.enable_log_requests
        self._logs_prompts = config.server.enable_log_prompts
        self._closed: Callable[[], EngineError] | None = None
        self._paused: Callable[[], EngineError] | None = None

    @property
    def in_flight(self) -> int:
        """Choices that have not ended."""
        return self.room.in_flight

    def close(self, why: Callable[[], EngineError]) -> None:
        """Refuse every request from now on with what ``why`` makes; those in flight go on."""
        self._closed = why

    def pause(self, why: Callable[[], EngineError] | None) -> None:
        """As :meth:`close`, until it is called with None."""
        self._paused = why

    def check_room(self, params: SamplingParams, prompts: int = 1) -> None:
        """As ``contracts.Generator.check_room``."""
        self.check_open()
        self._check_generates()
        check_choices(params, self._limits.bounds)
        self.room.check(params.num_sequences * prompts, _multiplier(params))

    async def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        context: RequestContext | None = None,
        *,
        add_special_tokens: bool = True,
        parsing: Parsing | None = None,
    ) -> Generation:
        """As ``contracts.Generator.submit``."""
        arrived_s = time.monotonic()
        context = context or RequestContext()
        self.check_open()
        self._check_generates()
        check_choices(params, self._limits.bounds)
        check_priority(context.priority, self._policy)
        parsers = self._formats.answer(parsing)
        if parsers is not None:
            params = parsers.constrained(params)
        deadline = self._deadline(context)
        place = self.room.enter(params.num_sequences, _multiplier(params))
        try:
            async with _until(deadline):
                accepted = await self._accept(
                    prompt, params, context, place, deadline, parsers, add_special_tokens=add_special_tokens
                )
            accepted = dataclasses.replace(accepted, arrived_s=arrived_s)
            # What was checked still holds when the requests are sent: nothing is awaited in between.
            self.check_open()
            generation = await self._start(accepted)
        except BaseException:
            place.close()
            raise
        if self._logs_requests:
            _log(accepted, context)
        if self._logs_prompts:
            _log_prompt(accepted, context)
        return generation

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As ``contracts.Generator.tokenize``."""
        return await self._texts.encode(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, ids: Sequence[int], name: str = "tokens") -> str:
        """As ``contracts.Generator.detokenize``."""
        return await self._texts.decode(ids, name)

    # ---- the steps of a request ----

    async def _accept(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        context: RequestContext,
        place: Place,
        deadline: Deadline | None,
        parsers: AnswerParsers | None,
        *,
        add_special_tokens: bool,
    ) -> Accepted:
        if isinstance(prompt, str):
            whole = params.truncate_prompt_tokens is None
            prompt = await self._texts.prompt_ids(prompt, add_special_tokens=add_special_tokens, whole=whole)
        check_prompt(prompt, self._limits.vocab_size)
        prompt = truncated(prompt, params, self._limits)
        check_prompt_tokens(prompt, self._limits.bounds.max_prompt_tokens)
        prepared = await self._preparer.run(prompt, params, context)
        params = prepared.params
        self._stages.check(params)
        attachments = await self._attached(params, prepared.attachments, parsers)
        requests = make_requests(prompt, params, context, self._limits, attachments)
        place.resize(params.num_sequences, _multiplier(params))  # a plugin may have changed it
        place.charge(context.caller, len(requests[0].prompt_ids), requests[0].max_tokens)
        return Accepted(
            requests,
            params,
            self._tokenizer,
            place,
            self._observers.tell,
            deadline,
            parsers,
            self._stages,
        )

    async def _attached(
        self, params: SamplingParams, attachments: Attachments, parsers: AnswerParsers | None
    ) -> Attachments:
        attachments = dataclasses.replace(attachments, thinking=thinking_of(parsers, params))
        if params.bad_words:
            # Two texts a word to tokenize: milliseconds where there are many.
            words = await asyncio.to_thread(
                bad_word_ids, self._tokenizer, params.bad_words, self._limits.vocab_size
            )
            attachments = dataclasses.replace(attachments, bad_words=words)
        if params.structured is not None:
            if self._grammars is None:
                raise RequestError(
                    "structured is not available here: this server compiles no grammars", param="structured"
                )
            grammar = await self._grammars.compile(params.structured)
            attachments = dataclasses.replace(attachments, grammar=grammar)
        return attachments

    async def _start(self, accepted: Accepted) -> Generation:
        params = accepted.params
        if params.beam_search is not None:
            beams = BeamGeneration(accepted, self._limits.vocab_size)
            await beams.start(self._client)
            return beams
        generation = EngineGeneration(accepted)
        await generation.start(self._client)
        if params.num_sequences == params.n:
            return generation
        return BestOf(generation, params.n, with_logprobs=params.logprobs is not None)

    def _deadline(self, context: RequestContext) -> Deadline | None:
        check_timeout(context.timeout_s)
        allowed = [seconds for seconds in (self._timeout_s, context.timeout_s) if seconds is not None]
        if not allowed:
            return None
        return Deadline(asyncio.get_running_loop().time() + min(allowed), min(allowed))

    def _check_generates(self) -> None:
        if self._refusal is not None:
            raise RequestError(self._refusal, param="model", code="model_not_supported")

    def check_open(self) -> None:
        """:raises EngineError: requests are refused now."""
        closed = self._closed or self._paused
        if closed is not None:
            raise closed()


def _multiplier(params: SamplingParams) -> str:
    """The field that makes several sequences of a prompt; ``prompt`` where there is one of each."""
    if params.num_sequences == 1:
        return "prompt"
    if params.beam_search is not None:
        return "beam_search.width"
    return "n" if params.best_of is None else "best_of"


@contextlib.asynccontextmanager
async def _until(deadline: Deadline | None) -> AsyncIterator[None]:
    """:raises RequestTimeout: the body did not end in time; it was cancelled."""
    try:
        async with asyncio.timeout_at(None if deadline is None else deadline.at_s) as limit:
            yield
    except TimeoutError:
        if deadline is None or not limit.expired():
            raise
        raise RequestTimeout(deadline.message) from None


def _log(accepted: Accepted, context: RequestContext) -> None:
    logger.info(
        "request %s (%s): %d prompt tokens, %s",
        accepted.request_id,
        context.request_id,
        len(accepted.prompt_ids),
        accepted.params,
    )


def _log_prompt(accepted: Accepted, context: RequestContext) -> None:
    """On one line: a prompt must not pass for another entry of the log."""
    shown = accepted.tokenizer.decode(accepted.prompt_ids[:LOGGED_TOKENS])
    more = "..." if len(accepted.prompt_ids) > LOGGED_TOKENS else ""
    logger.info("request %s (%s): %r%s", accepted.request_id, context.request_id, shown, more)
