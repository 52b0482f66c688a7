"""More choices than were asked for, of which the likeliest are given."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from llmkit.contracts import Event, Finished, PositionLogprobs, Tokens, Usage
from llmkit.frontend.generation import EngineGeneration
from llmkit.types import FinishReason


class BestOf:
    """A ``contracts.Generation`` over one with more choices; owns their events until all have ended."""

    def __init__(self, generation: EngineGeneration, wanted: int, *, with_logprobs: bool) -> None:
        self.request_id = generation.request_id
        self.prompt_ids = generation.prompt_ids
        self.num_choices = wanted
        self._generation = generation
        self._choices: list[list[Event]] = [[] for _ in range(generation.num_choices)]
        self._with_logprobs = with_logprobs
        self._given: deque[tuple[int, Event]] | None = None

    @property
    def usage(self) -> Usage:
        """Every choice counts, given or not: each was generated."""
        return self._generation.usage

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        if self._given is None:
            async for index, event in self._generation:
                self._choices[index].append(event)
            self._given = deque(self._chosen())
        if not self._given:
            raise StopAsyncIteration
        return self._given.popleft()

    def ready(self) -> Sequence[tuple[int, Event]]:
        """As ``contracts.Generation.ready``."""
        given = [*(self._given or ())]
        if self._given is not None:
            self._given.clear()
        return given

    async def aclose(self) -> None:
        """As ``contracts.Generation.aclose``."""
        self._given = deque()
        await self._generation.aclose()

    def _chosen(self) -> list[tuple[int, Event]]:
        ends = [event for events in self._choices for event in events if isinstance(event, Finished)]
        failed = next((end for end in ends if end.reason in (FinishReason.ERROR, FinishReason.ABORT)), None)
        if failed is not None:
            return [(place, failed) for place in range(self.num_choices)]
        best = best_choices([_logprobs(events) for events in self._choices], self.num_choices)
        return [
            (place, self._shown(event)) for place, index in enumerate(best) for event in self._choices[index]
        ]

    def _shown(self, event: Event) -> Event:
        if isinstance(event, Tokens) and not self._with_logprobs:
            return msgspec.structs.replace(event, logprobs=())
        return event


def best_choices(logprobs: Sequence[Sequence[PositionLogprobs]], wanted: int) -> list[int]:
    """Indices of the choices with the highest mean logprob a token, best first; the earlier of equals."""
    means = [_mean(positions) for positions in logprobs]
    return sorted(range(len(means)), key=lambda index: -means[index])[:wanted]


def _mean(positions: Sequence[PositionLogprobs]) -> float:
    if not positions:
        return -math.inf
    return math.fsum(position.sampled.logprob for position in positions) / len(positions)


def _logprobs(events: Sequence[Event]) -> list[PositionLogprobs]:
    return [position for event in events if isinstance(event, Tokens) for position in event.logprobs]
