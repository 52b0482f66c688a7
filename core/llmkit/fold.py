"""A whole response: the fold of the events that a streamed one sends one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from llmkit.events import (
    ArgumentsDelta,
    Content,
    Event,
    Finished,
    PositionLogprobs,
    PromptLogprobs,
    Reasoning,
    Tokens,
    ToolCallClosed,
    ToolCallOpened,
)


@dataclass(frozen=True, slots=True)
class FoldedCall:
    """One call of a tool."""

    name: str
    arguments: str
    """JSON text as the model wrote it; of a call that was cut off, what came of it."""
    complete: bool


@dataclass(frozen=True, slots=True)
class FoldedChoice:
    """One choice, complete."""

    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs]
    """One a token where logprobs were asked for, else empty."""
    finish: Finished
    prompt_logprobs: list[PositionLogprobs] | None = None
    """From the second prompt token on, where they were asked for."""
    reasoning: str = ""
    calls: tuple[FoldedCall, ...] = ()


class ChoiceEvents(Protocol):
    """Events of several choices, each with the choice's index: a ``Generation``, or several as one."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]: ...
    async def aclose(self) -> None: ...


class ChoiceFold:
    """Collects one choice's events."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[FoldedCall] = []
        self._arguments: list[str] | None = None
        """Of the call that is open."""
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._prompt_logprobs: list[PositionLogprobs] | None = None
        self._finish: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Tokens():
                self._token_ids += event.token_ids
                self._logprobs += event.logprobs
            case Content():
                self._text.append(event.text)
            case PromptLogprobs():
                self._prompt_logprobs = list(event.positions)
            case Finished():
                self._finish = event
            case Reasoning():
                self._reasoning.append(event.text)
            case ToolCallOpened():
                self._end_call()
                self._calls.append(FoldedCall(event.name, "", complete=False))
                self._arguments = []
            case ArgumentsDelta() if self._arguments is not None:
                self._arguments.append(event.text)
            case ToolCallClosed() if self._arguments is not None:
                self._end_call(complete=True)
            case _:
                raise TypeError(f"a {type(event).__name__} without an open call")

    def result(self) -> FoldedChoice:
        """Call it once ``Finished`` was added."""
        assert self._finish is not None, "the choice has not ended"
        self._end_call()
        return FoldedChoice(
            "".join(self._text),
            self._token_ids,
            self._logprobs,
            self._finish,
            self._prompt_logprobs,
            "".join(self._reasoning),
            tuple(self._calls),
        )

    def _end_call(self, *, complete: bool = False) -> None:
        if self._arguments is not None:
            self._calls[-1] = replace(self._calls[-1], arguments="".join(self._arguments), complete=complete)
            self._arguments = None


def fold(events: Iterable[Event]) -> FoldedChoice:
    """All events of one choice as one value."""
    choice = ChoiceFold()
    for event in events:
        choice.add(event)
    return choice.result()


async def fold_generation(generation: ChoiceEvents, choices: int) -> list[FoldedChoice]:
    """Run a generation to its end; one value a choice, by index. Closes it however it ends."""
    folds = [ChoiceFold() for _ in range(choices)]
    try:
        async for index, event in generation:
            folds[index].add(event)
    finally:
        await generation.aclose()
    return [choice.result() for choice in folds]
