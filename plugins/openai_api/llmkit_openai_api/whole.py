"""A whole answer: the fold of the events that a stream sends one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmkit.contracts import Content, Event, Finished, PositionLogprobs, Tokens
from llmkit_openai_api.choices import Choices


@dataclass(slots=True)
class WholeChoice:
    """One choice while it is put together; complete once ``finished`` is set."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, event: Event) -> None:
        match event:
            case Tokens():
                self.logprobs += event.logprobs
            case Content():
                self.pieces.append(event.text)
            case Finished():
                self.finished = event
            case _:
                raise TypeError(f"an answer has no place for a {type(event).__name__}")


async def fold(choices: Choices) -> list[WholeChoice]:
    """All choices by index; closes ``choices`` however it ends.

    :raises EngineError: one of them failed.
    """
    whole = [WholeChoice() for _ in range(choices.count)]
    try:
        async for index, event in choices:
            whole[index].add(event)
    finally:
        await choices.aclose()
    return whole
