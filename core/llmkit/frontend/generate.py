"""Generator: from a prompt to events, one request end to end in the front process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from llmkit.config import Config
from llmkit.contracts import (
    AddRequest,
    EngineClient,
    Event,
    Finished,
    RequestContext,
    SamplingParams,
    Tokenizer,
    Usage,
)
from llmkit.errors import EngineError, QueueFull, RequestError
from llmkit.frontend.check import check_prompt, check_text
from llmkit.frontend.merge import merged
from llmkit.frontend.observers import Observer, Observers, RequestNotes
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.prepare import Preparer
from llmkit.frontend.requests import Limits, make_requests
from llmkit.types import FinishReason

logger = logging.getLogger(__name__)

_LONG_TEXT = 4096
"""Characters from which tokenizing is worth a thread: it takes a millisecond and more."""


class FrontGenerator:
    """Checks and queues requests; owns the count of those in flight and the door to more.

    At most ``max_num_seqs + max_queue`` choices are in flight: so many run and wait at most.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        limits: Limits,
        config: Config,
        preparer: Preparer,
        observers: Observers | None = None,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._limits = limits
        self._preparer = preparer
        self._observers = observers or Observers()
        self._capacity = config.scheduler.max_num_seqs + config.scheduler.max_queue
        self._logs_requests = config.server.enable_log_requests
        self._in_flight = 0
        self._closed: Callable[[], EngineError] | None = None

    @property
    def in_flight(self) -> int:
        """Choices that have not ended."""
        return self._in_flight

    def close(self, why: Callable[[], EngineError]) -> None:
        """Refuse every request from now on with what ``why`` makes; those in flight go on."""
        self._closed = why

    async def submit(
        self, prompt: str | Sequence[int], params: SamplingParams, context: RequestContext | None = None
    ) -> EngineGeneration:
        """As ``contracts.Generator.submit``."""
        self._check_open()
        context = context or RequestContext()
        prompt_ids = await self._tokenize(prompt)
        check_prompt(prompt_ids, self._limits.vocab_size)
        prepared = await self._preparer.run(prompt_ids, params, context)
        params = prepared.params
        requests = make_requests(prompt_ids, params, context, self._limits, prepared.attachments)
        # No await from here on: what was checked still holds when the requests are sent.
        self._check_open()
        self._enter(len(requests))
        if self._logs_requests:
            logger.info(
                "request %s (%s): %d prompt tokens, %s",
                requests[0].request_id.rpartition("-")[0],
                context.request_id,
                len(prompt_ids),
                params,
            )
        try:
            return EngineGeneration(
                requests, self._client, self._tokenizer, self._leave, self._observers.tell
            )
        except EngineError:
            self._leave(len(requests))
            raise

    async def _tokenize(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        check_text("prompt", prompt)
        if len(prompt) < _LONG_TEXT:
            return self._tokenizer.encode(prompt)
        return await asyncio.to_thread(self._tokenizer.encode, prompt)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()

    def _enter(self, choices: int) -> None:
        if choices > self._capacity:
            raise RequestError(
                f"n is {choices}; this server holds {self._capacity} sequences, running and waiting",
                param="n",
                code="integer_above_max_value",
            )
        if self._in_flight + choices > self._capacity:
            raise QueueFull(
                f"{self._in_flight} sequences are running or waiting and there is room for {self._capacity};"
                " try again later"
            )
        self._in_flight += choices

    def _leave(self, choices: int) -> None:
        self._in_flight -= choices


class EngineGeneration:
    """One request under way, as ``contracts.Generation``; owns its choices' pipelines and streams."""

    def __init__(
        self,
        requests: Sequence[AddRequest],
        client: EngineClient,
        tokenizer: Tokenizer,
        on_end: Callable[[int], None],
        tell: Observer,
    ) -> None:
        first = requests[0]
        self.request_id = first.request_id.rpartition("-")[0]
        self.prompt_ids: Sequence[int] = first.prompt_ids
        self._pipelines = [OutputPipeline(tokenizer, first.prompt_ids, first.params) for _ in requests]
        self._on_end = on_end
        self._notes = RequestNotes(self.request_id, len(requests), tell)
        self._live = set(range(len(requests)))
        self._events: deque[tuple[int, Event]] = deque()
        if first.max_tokens == 0:
            # Nothing to generate: the engine need not know.
            self._outputs = None
            self._events += [(index, Finished(FinishReason.LENGTH)) for index in self._live]
            self._end(list(self._live), FinishReason.LENGTH)
        else:
            self._outputs = merged([client.stream(request) for request in requests])

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
            index, outcome = await self._outputs.next()
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
                    await self._outputs.close([index])
        return self._events.popleft()

    async def aclose(self) -> None:
        """Abort what still runs; no more events come."""
        self._events.clear()
        live = sorted(self._live)
        self._end(live, FinishReason.ABORT)
        if self._outputs is not None:
            await self._outputs.close(live)

    def _end(self, indices: Sequence[int], reason: FinishReason) -> None:
        self._live.difference_update(indices)
        self._on_end(len(indices))
        for index in indices:
            self._notes.end(index, reason, self.usage)


def _reason(events: Sequence[Event]) -> FinishReason:
    """Of a choice whose last events these are."""
    end = events[-1]
    assert isinstance(end, Finished), "a choice ends with Finished"
    return end.reason
