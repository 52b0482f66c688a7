"""Generator: from a prompt to events, one request end to end in the front process."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from llmkit.config import Config
from llmkit.contracts import (
    AddRequest,
    CompiledGrammar,
    EngineClient,
    Event,
    Finished,
    OutputStream,
    RequestContext,
    SamplingParams,
    StepOutput,
    Tokenizer,
    Usage,
)
from llmkit.errors import EngineError, RequestError
from llmkit.frontend.check import check_choices, check_priority, check_prompt
from llmkit.frontend.grammars import GrammarCompiler
from llmkit.frontend.observers import Observer, Observers, RequestNotes
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.prepare import Preparer
from llmkit.frontend.requests import Limits, make_requests
from llmkit.frontend.room import Room
from llmkit.frontend.texts import Texts
from llmkit.merge import Merged
from llmkit.types import FinishReason

logger = logging.getLogger(__name__)


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
    ) -> None:
        """Without ``grammars``, structured output is refused."""
        self._client = client
        self._tokenizer = tokenizer
        self._texts = Texts(tokenizer, limits.max_model_len)
        self._limits = limits
        self._preparer = preparer
        self._observers = observers or Observers()
        self._grammars = grammars
        self._room = Room(config.scheduler.max_num_seqs + config.scheduler.max_queue)
        self._policy = config.scheduler.scheduling_policy
        self._logs_requests = config.server.enable_log_requests
        self._closed: Callable[[], EngineError] | None = None

    @property
    def in_flight(self) -> int:
        """Choices that have not ended."""
        return self._room.in_flight

    def close(self, why: Callable[[], EngineError]) -> None:
        """Refuse every request from now on with what ``why`` makes; those in flight go on."""
        self._closed = why

    def check_room(self, choices: int) -> None:
        """As ``contracts.Generator.check_room``."""
        self._check_open()
        self._room.check(choices)

    async def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        context: RequestContext | None = None,
        *,
        add_special_tokens: bool = True,
    ) -> EngineGeneration:
        """As ``contracts.Generator.submit``."""
        context = context or RequestContext()
        self._check_open()
        check_choices(params.n)
        check_priority(context.priority, self._policy)
        held = params.n
        self._room.enter(held)
        try:
            if isinstance(prompt, str):
                prompt = await self._texts.prompt_ids(prompt, add_special_tokens=add_special_tokens)
            check_prompt(prompt, self._limits.vocab_size)
            prepared = await self._preparer.run(prompt, params, context)
            grammar = await self._grammar_of(prepared.params)
            requests = make_requests(
                prompt, prepared.params, context, self._limits, prepared.attachments, grammar
            )
            # A plugin may have changed n.
            self._room.leave(held)
            held = 0
            self._room.enter(len(requests))
            held = len(requests)
            # What was checked still holds when the requests are sent: nothing is awaited in between.
            self._check_open()
            generation = EngineGeneration(requests, self._tokenizer, self._room.leave, self._observers.tell)
            await generation.start(self._client)
        except BaseException:
            self._room.leave(held)
            raise
        if self._logs_requests:
            _log(requests[0], context)
        return generation

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As ``contracts.Generator.tokenize``."""
        return await self._texts.encode(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, ids: Sequence[int], name: str = "tokens") -> str:
        """As ``contracts.Generator.detokenize``."""
        return await self._texts.decode(ids, name)

    async def _grammar_of(self, params: SamplingParams) -> CompiledGrammar | None:
        if params.structured is None:
            return None
        if self._grammars is None:
            raise RequestError("structured output is not available here", param="structured")
        return await self._grammars.compile(params.structured)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()


class EngineGeneration:
    """One request under way, as ``contracts.Generation``; owns its choices' pipelines and streams."""

    def __init__(
        self,
        requests: Sequence[AddRequest],
        tokenizer: Tokenizer,
        on_end: Callable[[int], None],
        tell: Observer,
    ) -> None:
        first = requests[0]
        self.request_id = first.request_id.rpartition("-")[0]
        self.prompt_ids: Sequence[int] = first.prompt_ids
        self._requests = requests
        self._pipelines = [OutputPipeline(tokenizer, first.prompt_ids, first.params) for _ in requests]
        self._on_end = on_end
        self._notes = RequestNotes(self.request_id, len(requests), tell)
        self._live = set(range(len(requests)))
        self._events: deque[tuple[int, Event]] = deque()
        self._streams: list[OutputStream] = []
        self._outputs: Merged[Outcome] | None = None

    async def start(self, client: EngineClient) -> None:
        """Send the requests; once, before anything else.

        :raises EngineError: the engine is gone; none is left there.
        """
        if self._requests[0].max_tokens == 0:
            # Nothing to generate: the engine need not know.
            self._events += [(index, Finished(FinishReason.LENGTH)) for index in self._live]
            self._end(list(self._live), FinishReason.LENGTH)
            return
        try:
            for request in self._requests:
                self._streams.append(client.stream(request))
        except BaseException:
            for stream in self._streams:
                await stream.aclose()
            raise
        self._outputs = Merged([_Outcomes(stream) for stream in self._streams])

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=sum(pipeline.num_tokens for pipeline in self._pipelines),
            cached_tokens=self._pipelines[0].cached_tokens,
        )

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        while not self._events:
            if not self._live or self._outputs is None:
                raise StopAsyncIteration
            index, outcome = await anext(self._outputs)
            if index not in self._live:
                continue
            pipeline = self._pipelines[index]
            if isinstance(outcome, EngineError):
                events = pipeline.fail(str(outcome))
            else:
                events = pipeline.feed(outcome)
                if pipeline.num_tokens:
                    self._notes.token()
            self._events += [(index, event) for event in events]
            if pipeline.finished:
                self._end([index], _reason(events))
                if pipeline.abort_needed:
                    await self._close_streams([index])
        return self._events.popleft()

    async def aclose(self) -> None:
        """Abort what still runs; no more events come."""
        self._events.clear()
        live = sorted(self._live)
        self._end(live, FinishReason.ABORT)
        if self._outputs is not None:
            await self._close_streams(live)

    async def _close_streams(self, indices: Sequence[int]) -> None:
        assert self._outputs is not None
        for index in indices:
            self._outputs.stop(index)
        for index in indices:
            await self._streams[index].aclose()

    def _end(self, indices: Sequence[int], reason: FinishReason) -> None:
        self._live.difference_update(indices)
        self._on_end(len(indices))
        for index in indices:
            self._notes.end(index, reason, self.usage)


Outcome = StepOutput | EngineError


class _Outcomes:
    """A stream's outputs and, as its last item, the error it ended with."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        self._ended = False

    def __aiter__(self) -> _Outcomes:
        return self

    async def __anext__(self) -> Outcome:
        if self._ended:
            raise StopAsyncIteration
        try:
            outcome = await anext(self._stream)
        except EngineError as error:
            self._ended = True
            return error
        except StopAsyncIteration:
            self._ended = True
            return EngineError("the engine ended the request's outputs without a finish reason")
        self._ended = outcome.finish is not None
        return outcome


def _reason(events: Sequence[Event]) -> FinishReason:
    """Of a choice whose last events these are."""
    end = events[-1]
    assert isinstance(end, Finished), "a choice ends with Finished"
    return end.reason


def _log(request: AddRequest, context: RequestContext) -> None:
    logger.info(
        "request %s (%s): %d prompt tokens, %s",
        request.request_id.rpartition("-")[0],
        context.request_id,
        len(request.prompt_ids),
        request.params,
    )
