"""Who is told of requests that ended, and what is noted of one until then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from llmkit.contracts import RequestRecord, Usage
from llmkit.types import FinishReason

logger = logging.getLogger(__name__)

T = TypeVar("T")

Observer = Callable[[RequestRecord], None]
RefusalObserver = Callable[[int], None]
"""Is told the status."""


class Observers:
    """Tells each of every request that ended or was refused; one that raises is logged and the others
    are told.
    """

    def __init__(self) -> None:
        self._of_ends: list[Observer] = []
        self._of_refusals: list[RefusalObserver] = []

    def add(self, observer: Observer) -> None:
        self._of_ends.append(observer)

    def add_of_refusals(self, observer: RefusalObserver) -> None:
        self._of_refusals.append(observer)

    def tell(self, record: RequestRecord) -> None:
        _tell(self._of_ends, record)

    def tell_refusal(self, status: int) -> None:
        _tell(self._of_refusals, status)


class RequestNotes:
    """Times and endings of one request; gives its record to ``tell`` when the last choice ends."""

    def __init__(self, request_id: str, choices: int, tell: Observer) -> None:
        self._request_id = request_id
        self._reasons: list[FinishReason | None] = [None] * choices
        self._open = choices
        self._tell = tell
        self._arrived_s = time.monotonic()
        self._first_token_s: float | None = None

    def token(self) -> None:
        """Some choice has a token; only the first call counts."""
        if self._first_token_s is None:
            self._first_token_s = time.monotonic()

    def end(self, choice: int, reason: FinishReason, usage: Usage) -> None:
        """Once for each choice; ``usage`` is the request's so far."""
        assert self._reasons[choice] is None, "a choice ends once"
        self._reasons[choice] = reason
        self._open -= 1
        if self._open == 0:
            reasons = tuple(reason for reason in self._reasons if reason is not None)
            record = RequestRecord(
                self._request_id, reasons, usage, self._arrived_s, self._first_token_s, time.monotonic()
            )
            self._tell(record)


def _tell(observers: Sequence[Callable[[T], None]], what: T) -> None:
    for observer in observers:
        try:
            observer(what)
        except Exception:  # a plugin's code: the others are told nevertheless
            logger.exception("observer %r failed on %r", observer, what)
