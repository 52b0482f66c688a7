"""Who is told of requests that ended, and what is noted of one until then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from llmkit.contracts import HttpRecord, RequestRecord, StepOutput, StepRecord, Usage
from llmkit.types import FinishReason

logger = logging.getLogger(__name__)

T = TypeVar("T")

Observer = Callable[[RequestRecord], None]
StepObserver = Callable[[StepRecord], None]
HttpObserver = Callable[[HttpRecord], None]


class Observers:
    """Tells each of what it asked for; one that raises is logged and the others are told."""

    def __init__(self) -> None:
        self.of_ends: list[Observer] = []
        self.of_steps: list[StepObserver] = []
        self.of_http: list[HttpObserver] = []

    def tell(self, record: RequestRecord) -> None:
        """A request ended."""
        _tell(self.of_ends, record)

    def tell_step(self, record: StepRecord) -> None:
        """The engine sent outputs."""
        _tell(self.of_steps, record)

    def tell_http(self, record: HttpRecord) -> None:
        """An HTTP request was answered or refused."""
        _tell(self.of_http, record)


class RequestNotes:
    """Times and endings of one request; gives its record to ``tell`` when the last choice ends."""

    def __init__(
        self, request_id: str, choices: int, max_tokens: int, arrived_s: float, tell: Observer
    ) -> None:
        self._request_id = request_id
        self._reasons: list[FinishReason | None] = [None] * choices
        self._open = choices
        self._longest = 0
        self._max_tokens = max_tokens
        self._tell = tell
        self._arrived_s = arrived_s
        self._scheduled_s: float | None = None
        self._first_token_s: float | None = None

    def output(self, output: StepOutput, tokens: int) -> None:
        """The engine gave something to a choice, which has so many tokens now."""
        if self._first_token_s is not None:
            return
        if self._scheduled_s is None and output.scheduled_s:
            self._scheduled_s = output.scheduled_s
        if tokens:
            self._first_token_s = time.monotonic()

    def end(self, choice: int, reason: FinishReason, usage: Usage, tokens: int) -> None:
        """Once for each choice, which has so many tokens; ``usage`` is the request's so far."""
        assert self._reasons[choice] is None, "a choice ends once"
        self._reasons[choice] = reason
        self._longest = max(self._longest, tokens)
        self._open -= 1
        if self._open == 0:
            reasons = tuple(reason for reason in self._reasons if reason is not None)
            record = RequestRecord(
                self._request_id,
                reasons,
                usage,
                self._longest,
                self._max_tokens,
                self._arrived_s,
                self._scheduled_s,
                self._first_token_s,
                time.monotonic(),
            )
            self._tell(record)


def _tell(observers: Sequence[Callable[[T], None]], what: T) -> None:
    for observer in observers:
        try:
            observer(what)
        except Exception:  # a plugin's code: the others are told nevertheless
            logger.exception("observer %r failed on %r", observer, what)
