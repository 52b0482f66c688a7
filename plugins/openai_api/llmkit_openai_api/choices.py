"""All choices of one HTTP request, over one prompt or several, as one stream of events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from llmkit import Draining, EngineDead, EngineError, RequestError, RequestTimeout
from llmkit.contracts import (
    Event,
    Finished,
    FinishReason,
    Generation,
    Merged,
    Parsing,
    RequestContext,
    SamplingParams,
    Services,
    Usage,
)

Prompt = str | list[int]


class Choices:
    """Numbered across prompts: those of the first one, then those of the next.

    Start (or submit) and iterate once; whoever made it closes it, started or not, which aborts what still
    runs.
    """

    def __init__(
        self,
        services: Services,
        prompts: Mapping[str, Prompt],
        params: SamplingParams,
        context: RequestContext,
        *,
        add_special_tokens: bool,
        parsing: Parsing | None = None,
    ) -> None:
        """``prompts`` by what the request calls each, such as ``prompt[1]``, for its errors."""
        self._parsing = parsing
        self._generator = services.generator
        self._prompts = prompts
        self._params = params
        self._context = context
        self._add_special_tokens = add_special_tokens
        self._generations: list[Generation] = []
        self._places: list[int] = []
        """Choice -> its prompt's place."""
        self._begins: list[int] = []
        """Prompt's place -> its first choice."""
        self._events: Merged[tuple[int, Event]] | None = None
        self._first: asyncio.Task[None] | None = None
        """Takes the first event, while nobody has it."""
        self._arrived: deque[tuple[int, Event]] = deque()

    @property
    def count(self) -> int:
        """Once :meth:`submit` is done."""
        return len(self._places)

    @property
    def usage(self) -> Usage:
        """Of all prompts together; final once the events have ended."""
        parts = [generation.usage for generation in self._generations]
        return Usage(
            sum(part.prompt_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
            sum(part.cached_tokens for part in parts),
            sum(part.reasoning_tokens for part in parts),
        )

    def usage_so_far(self, index: int, completion_tokens: int) -> Usage:
        """Of one choice that has so many tokens; nobody tells its reasoning from the rest yet."""
        prompt = self._generations[self._places[index]].usage
        return Usage(prompt.prompt_tokens, completion_tokens, prompt.cached_tokens)

    def place(self, index: int) -> int:
        """Which of the prompts a choice continues; once :meth:`submit` is done."""
        return self._places[index]

    def prompt_ids(self, index: int) -> Sequence[int]:
        """The prompt of a choice as the model gets it; once :meth:`submit` is done."""
        return self._generations[self._places[index]].prompt_ids

    async def start(self, patience_s: float | None = None) -> None:
        """Queue the choices of every prompt and wait for the first event, so that a failure before it is an
        exception and not a stream. After ``patience_s`` it is waited for no longer.

        :raises RequestError: one prompt is wrong.
        :raises EngineError: the engine failed or is gone.
        """
        await self.submit()
        first = self._first = asyncio.create_task(self._take())
        await asyncio.wait({first}, timeout=patience_s)
        if first.done():
            self._first = None
            first.result()
            raise_failure(self._arrived[0][1])

    async def submit(self) -> None:
        """As :meth:`start`, without the wait: for an answer that nobody waits for."""
        self._generator.check_room(self._params, len(self._prompts))
        for name, prompt in self._prompts.items():
            try:
                generation = await self._generator.submit(
                    prompt,
                    self._params,
                    self._context,
                    add_special_tokens=self._add_special_tokens,
                    parsing=self._parsing,
                )
            except RequestError as error:
                _name_prompt(error, name)
                raise
            self._begins.append(len(self._places))
            self._places += [len(self._generations)] * generation.num_choices
            self._generations.append(generation)
        self._events = Merged(self._generations)

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        """(index, event). :raises EngineError: a choice failed; nothing follows."""
        if not self._arrived:
            first, self._first = self._first, None
            await (self._take() if first is None else first)
        index, event = self._arrived.popleft()
        raise_failure(event)
        return index, event

    def ready(self) -> Iterator[tuple[int, Event]]:
        """The events that would come now without waiting, up to one that failed."""
        assert self._events is not None, "submit comes first"
        self._arrived += map(self._numbered, self._events.ready())
        while self._arrived and not _failed(self._arrived[0][1]):
            yield self._arrived.popleft()

    async def aclose(self) -> None:
        """Idempotent."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        for position in range(len(self._generations) if self._events is not None else 0):
            assert self._events is not None
            self._events.stop(position)
        for generation in self._generations:
            await generation.aclose()

    async def _take(self) -> None:
        assert self._events is not None, "submit comes first"
        self._arrived.append(self._numbered(await anext(self._events)))

    def _numbered(self, arrival: tuple[int, tuple[int, Event]]) -> tuple[int, Event]:
        position, (index, event) = arrival
        return self._begins[position] + index, event


def raise_failure(event: Event) -> None:
    """:raises EngineError: the event says that its choice ended without an answer.
    :raises RequestError: it says that what was asked has none.
    """
    if isinstance(event, Finished):
        if event.error_code == "request_timeout":
            raise RequestTimeout(event.error or "the request took too long")
        if event.error_code == "unsatisfiable":
            raise RequestError(event.error or "nothing satisfies the request", code="unsatisfiable")
        if event.error_code == "engine_dead":
            raise EngineDead(event.error or "the engine is gone")
        if event.reason is FinishReason.ERROR:
            raise EngineError(event.error or "the engine failed on this request")
        if event.reason is FinishReason.ABORT:
            raise Draining(event.error or "the server stopped before the answer was complete")


def _failed(event: Event) -> bool:
    return isinstance(event, Finished) and event.reason in (FinishReason.ERROR, FinishReason.ABORT)


def _name_prompt(error: RequestError, name: str) -> None:
    """Put in an error about a prompt what the request calls it; the front calls every one ``prompt``."""
    front_name, bracket, place = (error.param or "").partition("[")
    if front_name != "prompt":
        return
    if name.startswith("prompt["):
        error.args = (f"{name}: {error}",)
    error.param = name + bracket + place
