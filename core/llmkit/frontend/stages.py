"""Output stages: what a server has of them, and one choice's chain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    OutputStage,
    Reasoning,
    SamplingParams,
    StageMaker,
    ToolCallClosed,
    ToolCallOpened,
)
from llmkit.errors import RequestError
from llmkit.types import FinishReason

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TEXT = (Content, Reasoning, ArgumentsDelta)


class Stages:
    """What makes each choice's stages, in order; immutable, shared by all requests."""

    def __init__(self, makers: Sequence[tuple[str, StageMaker]] = ()) -> None:
        """``makers`` with the names that they were chosen by."""
        self._makers = tuple(makers)
        self.concealing = next((name for name, maker in makers if maker.conceals), None)
        """The first that wants nobody to read what it takes out."""

    def check(self, params: SamplingParams) -> None:
        """:raises RequestError: the answer would tell in logprobs what a stage takes out of its text."""
        if self.concealing is not None and params.logprobs is not None:
            raise RequestError(
                f"logprobs is not available here: output stage {self.concealing!r} takes things out of"
                " answers, and logprobs would show them",
                param="logprobs",
                code="unsupported_parameter",
            )

    def chain(self) -> StageChain | None:
        """For one choice; None where there is no stage."""
        return StageChain([(name, maker.stage()) for name, maker in self._makers]) if self._makers else None


class StageFailed(Exception):
    """A stage raised, or gave what it may not; the text is for the client."""


class StageChain:
    """One choice's stages, each after the other; owns them."""

    def __init__(self, stages: Sequence[tuple[str, OutputStage]]) -> None:
        self._stages = stages

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        """What the last stage gives. :raises StageFailed: one failed; the choice must end."""
        for name, stage in self._stages:
            deltas = _fed(name, stage, deltas)
        return list(deltas)

    def finish(self, reason: FinishReason) -> list[Delta]:
        """All that they hold back. :raises StageFailed: as :meth:`feed`."""
        deltas: list[Delta] = []
        for name, stage in self._stages:
            deltas = _fed(name, stage, deltas) + _given(name, stage.finish, reason)
        return deltas


def _fed(name: str, stage: OutputStage, deltas: Sequence[Delta]) -> list[Delta]:
    shown: list[Delta] = []
    for delta in deltas:
        shown += _given(name, stage.feed, delta)
    return shown


def _given(name: str, ask: Callable[[T], list[Delta]], told: T) -> list[Delta]:
    """What a stage gives when told of a delta or the end: text, and behind it the call's begin or end if it
    was told of one."""
    try:
        given = ask(told)
    except Exception as error:
        logger.exception("output stage %s raised", name)
        raise StageFailed(f"output stage {name!r} failed; the server's log says why") from error
    of_call = isinstance(told, ToolCallOpened | ToolCallClosed)
    texts = given[:-1] if of_call else given
    if (of_call and given[-1:] != [told]) or not all(isinstance(delta, _TEXT) for delta in texts):
        logger.error("output stage %s was told of %s and gave %s", name, told, given)
        raise StageFailed(f"output stage {name!r} failed: it makes, changes or drops calls")
    return given
