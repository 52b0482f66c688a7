"""A beam search under way: rounds of one-token requests, then the best beams as choices."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from llmkit.contracts import (
    AddRequest,
    EngineClient,
    Event,
    Finished,
    OutputStream,
    StepOutput,
    Usage,
)
from llmkit.errors import EngineError
from llmkit.frontend.beam import BeamRun
from llmkit.frontend.generation import TIMED_OUT, Accepted, code_of
from llmkit.frontend.observers import RequestNotes
from llmkit.frontend.output import OutputPipeline
from llmkit.types import FinishReason


class BeamGeneration:
    """As ``contracts.Generation``; owns its search and the requests of the round under way.

    Nothing can be said of a choice before the search has ended: then all events come at once.
    """

    def __init__(self, accepted: Accepted, vocab_size: int) -> None:
        self.request_id = accepted.request_id
        self.prompt_ids: Sequence[int] = accepted.prompt_ids
        self.num_choices = accepted.params.n
        self._accepted = accepted
        self._params = msgspec.structs.replace(accepted.params, prompt_logprobs=None)
        self._vocab_size = vocab_size
        self._notes = RequestNotes(
            self.request_id,
            self._params.n,
            accepted.requests[0].max_tokens,
            accepted.arrived_s,
            accepted.tell,
        )
        self._events: deque[tuple[int, Event]] = deque()
        self._streams: list[OutputStream] = []
        self._client: EngineClient | None = None
        self._completion_tokens = self._longest = 0
        self._reasoning_tokens = 0
        self._cached_tokens: int | None = None
        self._ended = False

    async def start(self, client: EngineClient) -> None:
        """Send the first round. :raises EngineError: the engine is gone."""
        self._client = client
        if self._accepted.requests[0].max_tokens == 0:
            self._give([[Finished(FinishReason.LENGTH)] for _ in range(self._params.n)])
            return
        self._run = BeamRun(self._accepted.requests[0], self._params, self._vocab_size)
        try:
            self._send(self._run.requests())
        except BaseException:
            await self._close_streams()
            raise

    @property
    def usage(self) -> Usage:
        return Usage(
            len(self.prompt_ids), self._completion_tokens, self._cached_tokens or 0, self._reasoning_tokens
        )

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        if not self._ended:
            await self._search()
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    def ready(self) -> Sequence[tuple[int, Event]]:
        """As ``contracts.Generation.ready``."""
        events = [*self._events]
        self._events.clear()
        return events

    async def aclose(self) -> None:
        """Abort what still runs; no more events come."""
        self._events.clear()
        if not self._ended:
            self._end([FinishReason.ABORT] * self._params.n)
        await self._close_streams()

    # ---- rounds ----

    async def _search(self) -> None:
        deadline = self._accepted.deadline
        try:
            async with asyncio.timeout_at(None if deadline is None else deadline.at_s):
                while not self._run.ended:
                    self._run.advance(await self._round())
                    if not self._run.ended:
                        self._send(self._run.requests())
        except TimeoutError:
            assert deadline is not None
            self._fail(deadline.message, TIMED_OUT)
        except EngineError as error:
            self._fail(str(error), code_of(error))
        else:
            self._give([self._choice(result) for result in self._run.results()])
        finally:
            await self._close_streams()

    def _send(self, requests: Sequence[AddRequest]) -> None:
        assert self._client is not None
        for request in requests:
            self._streams.append(self._client.stream(request))

    async def _round(self) -> list[StepOutput]:
        """The one output of each open beam. :raises EngineError: one failed."""
        outputs = [await _last(stream) for stream in self._streams]
        self._streams = []
        if self._cached_tokens is None:
            self._cached_tokens = outputs[0].cached_tokens
            self._notes.output(outputs[0], 1)
        return outputs

    def _choice(self, result: StepOutput) -> list[Event]:
        pipeline = OutputPipeline(
            self._accepted.tokenizer,
            self.prompt_ids,
            self._params,
            self._accepted.parsers,
            self._accepted.stages.chain(),
        )
        events = pipeline.feed(result)
        self._completion_tokens += pipeline.num_tokens
        self._longest = max(self._longest, pipeline.num_tokens)
        self._reasoning_tokens += pipeline.num_reasoning_tokens
        return events

    def _fail(self, message: str, code: str | None = None) -> None:
        failed = Finished(FinishReason.ERROR, error=message, error_code=code)
        self._give([[failed] for _ in range(self._params.n)])

    def _give(self, choices: Sequence[Sequence[Event]]) -> None:
        self._events += [(index, event) for index, events in enumerate(choices) for event in events]
        self._end([event.reason for events in choices for event in events if isinstance(event, Finished)])

    def _end(self, reasons: Sequence[FinishReason]) -> None:
        self._ended = True
        self._accepted.place.close()
        for index, reason in enumerate(reasons):
            self._notes.end(index, reason, self.usage, self._longest)

    async def _close_streams(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.aclose()


async def _last(stream: OutputStream) -> StepOutput:
    """What a one-token request gave. :raises EngineError: nothing."""
    async for output in stream:
        if output.finish is FinishReason.ERROR:
            raise EngineError(output.error or "the engine failed on this request")
        if output.finish is FinishReason.ABORT:
            raise EngineError("the engine stopped before the search was complete")
        if output.token_ids:
            return output
    raise EngineError("the engine ended the request's outputs without a token")
