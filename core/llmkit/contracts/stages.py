"""Stages behind the parsers: what becomes of an answer on its way to the client. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from llmkit.events import Delta
from llmkit.types import FinishReason


class OutputStage(Protocol):
    """One choice's stage: deltas in, deltas out, the same however their text is cut. Since 0.1.

    It may change text, take some out or hold it back, be it content, reasoning or arguments. It may not make
    calls nor lose one: ``ToolCallOpened`` and ``ToolCallClosed`` come out as they went in, behind what was
    held back. Arguments of a complete call stay one JSON object; no delta is without text.

    Stop strings, ``finish_reason``, usage, token ids and logprobs (with their text offsets) are those of what
    the model wrote. A stage that raises, or gives what it may not, ends its choice with an error.
    """

    def feed(self, delta: Delta) -> list[Delta]:
        """What may be shown with this piece."""

    def finish(self, reason: FinishReason) -> list[Delta]:
        """The end: all that was held back, and no call."""


class StageMaker(Protocol):
    """Makes the stages of all choices; immutable, shared by all requests. Since 0.1."""

    @property
    def conceals(self) -> bool:
        """What it takes out must not be read elsewhere: logprobs and token ids are refused to clients."""

    def stage(self) -> OutputStage:
        """A new one, for one choice."""


class RegisterOutputStage(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, factory: Callable[[Any], StageMaker]) -> None:
        """``factory(options)``."""
