"""All choices of one HTTP request, over one prompt or several, as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Self

from llmkit import Draining, EngineError
from llmkit.contracts import (
    Event,
    Finished,
    FinishReason,
    Generation,
    RequestContext,
    SamplingParams,
    Services,
    Usage,
)

_BUFFERED = 64
"""Events of several prompts that may wait for a slow client."""

Prompt = str | list[int]


class Choices:
    """Numbered across prompts: choice ``c`` of prompt ``p`` is ``p * n + c``.

    Iterate once; whoever made it closes it, which aborts what still runs.
    """

    def __init__(self, generations: Sequence[Generation], n: int) -> None:
        self._generations = generations
        self._n = n
        self._events = self._merged() if len(generations) > 1 else self._single()
        self._first: tuple[int, Event] | None = None

    @classmethod
    async def submit(
        cls, services: Services, prompts: Sequence[Prompt], params: SamplingParams, context: RequestContext
    ) -> Self:
        """Queue ``params.n`` choices a prompt and wait for the first event, so that a failure before
        it is an exception and not a stream.

        :raises RequestError: one prompt is wrong; nothing is left running.
        :raises EngineError: the engine failed or is gone.
        """
        generations: list[Generation] = []
        choices: Self | None = None
        try:
            for prompt in prompts:
                generations.append(await services.generator.submit(prompt, params, context))
            choices = cls(generations, params.n)
            choices._first = await anext(choices._events)
            raise_failure(choices._first[1])
        except BaseException:
            if choices is not None:
                await choices.aclose()
            else:
                await _close(generations)
            raise
        return choices

    @property
    def count(self) -> int:
        return len(self._generations) * self._n

    @property
    def usage(self) -> Usage:
        """Of all prompts together; final once the events have ended."""
        parts = [generation.usage for generation in self._generations]
        return Usage(
            sum(part.prompt_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
            sum(part.cached_tokens for part in parts),
        )

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        """(index, event). :raises EngineError: a choice failed; nothing follows."""
        if self._first is not None:
            yield self._first
        async for index, event in self._events:
            raise_failure(event)
            yield index, event

    async def aclose(self) -> None:
        await self._events.aclose()
        await _close(self._generations)

    async def _single(self) -> AsyncGenerator[tuple[int, Event], None]:
        async for index, event in self._generations[0]:
            yield index, event

    async def _merged(self) -> AsyncGenerator[tuple[int, Event], None]:
        arrivals: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue(_BUFFERED)

        async def forward(first_index: int, generation: Generation) -> None:
            try:
                async for index, event in generation:
                    await arrivals.put((first_index + index, event))
            finally:
                await arrivals.put(None)

        tasks = [
            asyncio.create_task(forward(position * self._n, generation))
            for position, generation in enumerate(self._generations)
        ]
        try:
            running = len(tasks)
            while running:
                arrival = await arrivals.get()
                if arrival is None:
                    running -= 1
                else:
                    yield arrival
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def raise_failure(event: Event) -> None:
    """:raises EngineError: the event says that its choice ended without an answer."""
    if isinstance(event, Finished):
        if event.reason is FinishReason.ERROR:
            raise EngineError(event.error or "the engine failed on this request")
        if event.reason is FinishReason.ABORT:
            raise Draining(event.error or "the server stopped before the answer was complete")


async def _close(generations: Sequence[Generation]) -> None:
    for generation in generations:
        await generation.aclose()
