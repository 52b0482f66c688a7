"""One request under way: its choices' streams of outputs become one stream of events."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from llmkit.contracts import (
    AddRequest,
    EngineClient,
    Event,
    Finished,
    OutputStream,
    PromptLogprobs,
    SamplingParams,
    StepOutput,
    Tokenizer,
    Usage,
)
from llmkit.errors import EngineDead, EngineError
from llmkit.frontend.observers import Observer, RequestNotes
from llmkit.frontend.output import OutputPipeline, params_of_choice
from llmkit.frontend.parsing import AnswerParsers
from llmkit.frontend.room import Place
from llmkit.frontend.stages import Stages
from llmkit.merge import Merged
from llmkit.types import FinishReason

TIMED_OUT = "request_timeout"
"""``Finished.error_code`` of what a deadline ended."""
ENGINE_DEAD = "engine_dead"
"""The same of what the engine's end did."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must have ended."""

    at_s: float
    """By the event loop's clock."""
    allowed_s: float

    @property
    def message(self) -> str:
        return (
            f"the request did not end within the {self.allowed_s:g} s that it may take"
            " (--request-timeout, or X-Request-Timeout where that is less)"
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that was checked and for which there is room, with all it takes to follow it."""

    requests: Sequence[AddRequest]
    params: SamplingParams
    """The client's, checked."""
    tokenizer: Tokenizer
    place: Place
    tell: Observer
    deadline: Deadline | None = None
    parsers: AnswerParsers | None = None
    stages: Stages = Stages()
    arrived_s: float = field(default_factory=time.monotonic)
    """By ``time.monotonic()``."""

    @property
    def request_id(self) -> str:
        return self.requests[0].request_id.rpartition("-")[0]

    @property
    def prompt_ids(self) -> Sequence[int]:
        return self.requests[0].prompt_ids


class EngineGeneration:
    """As ``contracts.Generation``; owns its choices' pipelines and streams."""

    def __init__(self, accepted: Accepted) -> None:
        self.request_id = accepted.request_id
        self.prompt_ids: Sequence[int] = accepted.prompt_ids
        self.num_choices = len(accepted.requests)
        self._requests = accepted.requests
        self._pipelines = _pipelines(accepted)
        self._place = accepted.place
        self._deadline = accepted.deadline
        self._notes = RequestNotes(
            self.request_id,
            len(self._requests),
            self._requests[0].max_tokens,
            accepted.arrived_s,
            accepted.tell,
        )
        self._live = set(range(len(self._requests)))
        self._events: deque[tuple[int, Event]] = deque()
        self._early: list[tuple[int, Event]] | None = None
        """Of the later choices while the first one's prompt logprobs, theirs too, are awaited."""
        if accepted.params.prompt_logprobs is not None and len(self._requests) > 1:
            self._early = []
        self._streams: list[OutputStream] = []
        self._to_close: list[int] = []
        """Choices that their text has ended, while the engine is still at them."""
        self._outputs: Merged[Outcome] | None = None

    async def start(self, client: EngineClient) -> None:
        """Send the requests; once, before anything else.

        :raises EngineError: the engine is gone; none is left there.
        """
        sent = self._requests
        if sent[0].max_tokens == 0:
            # Nothing to generate: the engine need not know, but for logprobs of the prompt.
            sent = sent[: 0 if sent[0].params.prompt_logprobs is None else 1]
            for index in range(len(sent), len(self._requests)):
                self._take(index, [Finished(FinishReason.LENGTH)])
        if not sent:
            return
        try:
            for request in sent:
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
            reasoning_tokens=sum(pipeline.num_reasoning_tokens for pipeline in self._pipelines),
        )

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        while True:
            if self._to_close:
                await self._close_ended()
            if self._events:
                return self._events.popleft()
            if not self._live or self._outputs is None:
                raise StopAsyncIteration
            if self._deadline is None:
                index, outcome = await anext(self._outputs)
            else:
                try:
                    async with asyncio.timeout_at(self._deadline.at_s):
                        index, outcome = await anext(self._outputs)
                except TimeoutError:
                    await self._time_out(self._deadline)
                    continue
            self._follow(index, outcome)

    def ready(self) -> Sequence[tuple[int, Event]]:
        """As ``contracts.Generation.ready``."""
        if self._outputs is not None and self._live:
            for index, outcome in self._outputs.ready():
                self._follow(index, outcome)
        events = [*self._events]
        self._events.clear()
        return events

    async def aclose(self) -> None:
        """Abort what still runs; no more events come."""
        await self._close_ended()
        self._events.clear()
        self._early = None
        live = sorted(self._live)
        for index in live:
            self._end(index, FinishReason.ABORT)
        await self._close_streams(live)

    def _follow(self, index: int, outcome: Outcome) -> None:
        if index not in self._live:
            return
        pipeline = self._pipelines[index]
        if isinstance(outcome, EngineError):
            events = pipeline.fail(str(outcome), code_of(outcome))
        else:
            events = pipeline.feed(outcome)
            self._notes.output(outcome, pipeline.num_tokens)
        self._take(index, events)
        if pipeline.abort_needed:
            self._to_close.append(index)

    async def _close_ended(self) -> None:
        """Abort in the engine what the text has ended."""
        ended, self._to_close = self._to_close, []
        await self._close_streams(ended)

    async def _time_out(self, deadline: Deadline) -> None:
        live = sorted(self._live)
        for index in live:
            self._take(index, self._pipelines[index].fail(deadline.message, TIMED_OUT))
        await self._close_streams(live)

    def _take(self, index: int, events: Sequence[Event]) -> None:
        """Queue what a choice gave, in the order that ``contracts.Generation`` promises."""
        if index and self._early is not None:
            self._early += [(index, event) for event in events]
        else:
            self._events += [(index, event) for event in events]
        if events and isinstance(events[-1], Finished):
            self._end(index, events[-1].reason)
        if index == 0 and self._early is not None and events:
            prompt = events[0] if isinstance(events[0], PromptLogprobs) else None
            if prompt is not None or 0 not in self._live:
                self._let_go(prompt)

    def _let_go(self, prompt: PromptLogprobs | None) -> None:
        """The prompt's logprobs are there, or will never be."""
        early, self._early = self._early or [], None
        if prompt is not None:
            self._events += [(index, prompt) for index in range(1, len(self._requests))]
        self._events += early

    async def _close_streams(self, indices: Sequence[int]) -> None:
        if self._outputs is None:
            return
        sent = [index for index in indices if index < len(self._streams)]
        for index in sent:
            self._outputs.stop(index)
        for index in sent:
            await self._streams[index].aclose()

    def _end(self, index: int, reason: FinishReason) -> None:
        self._live.discard(index)
        self._place.leave(1)
        self._notes.end(index, reason, self.usage, self._pipelines[index].num_tokens)


def _pipelines(accepted: Accepted) -> list[OutputPipeline]:
    """One a choice; the first one's alone is given logprobs of the prompt."""
    return [
        OutputPipeline(
            accepted.tokenizer,
            accepted.prompt_ids,
            params_of_choice(accepted.params, request.choice),
            accepted.parsers,
            accepted.stages.chain(),
        )
        for request in accepted.requests
    ]


def code_of(error: EngineError) -> str | None:
    """``Finished.error_code`` for what ended a request."""
    return ENGINE_DEAD if isinstance(error, EngineDead) else None


Outcome = StepOutput | EngineError


class _Outcomes:
    """A stream's outputs and, as its last item, the error it ended with."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        self._ended = False

    def __aiter__(self) -> _Outcomes:
        return self

    def ready(self) -> Sequence[Outcome]:
        if self._ended:
            return ()
        outputs = self._stream.ready()
        self._ended = bool(outputs) and outputs[-1].finish is not None
        return outputs

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
