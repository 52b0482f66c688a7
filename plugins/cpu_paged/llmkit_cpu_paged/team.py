"""A few threads that run one kernel together, without OpenMP and its spinning."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""Number of the run, function, arguments."""
_Answer = tuple[int, BaseException | None]
"""Number of the run, what the function raised."""


class Team:
    """The caller and ``num_threads - 1`` sleeping helpers, which end with it. One caller at a time.

    A helper costs the caller about ten microseconds to wake, so small work is better done alone. Kernels
    release the GIL and share work among themselves.
    """

    def __init__(self, num_threads: int) -> None:
        self._jobs: list[SimpleQueue[_Job | None]] = [SimpleQueue() for _ in range(num_threads - 1)]
        """Each helper's."""
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._number = 0
        self._unsettled = False
        """A helper may still be at work: a run has begun and not ended."""
        for jobs in self._jobs:
            threading.Thread(target=_help, args=(jobs, self._answers), name="cpu-paged", daemon=True).start()
        weakref.finalize(self, _stop, self._jobs)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """``function(*args)`` in every thread; returns or raises when all have returned.

        An exception in a helper is raised here. One in the caller, such as a KeyboardInterrupt at any
        point, waits for the helpers too; if another cuts that short, the next run waits first.
        """
        if self._unsettled:
            self._settle()
        try:
            number = self._begin(function, args)
            function(*args)
            failures = self._wait(number)
        except BaseException:
            self._settle()
            raise
        self._unsettled = False
        for failure in failures:
            if failure is not None:
                raise failure

    def _begin(self, function: Callable[..., Any], args: tuple[Any, ...]) -> int:
        self._unsettled = True
        self._number += 1
        for jobs in self._jobs:
            jobs.put((self._number, function, args))
        return self._number

    def _wait(self, number: int) -> list[BaseException | None]:
        """For every helper's answer to this run; those to runs that were interrupted are dropped."""
        failures: list[BaseException | None] = []
        while len(failures) < len(self._jobs):
            answered, failure = self._answers.get()
            if answered == number:
                failures.append(failure)
        return failures

    def _settle(self) -> None:
        """Wait until helpers are idle: each does its jobs in order, so a last one that does nothing ends
        whatever it was given before, be that nothing at all."""
        self._wait(self._begin(_nothing, ()))
        self._unsettled = False


def _help(jobs: SimpleQueue[_Job | None], answers: SimpleQueue[_Answer]) -> None:
    """A helper's life: jobs, until None."""
    while (job := jobs.get()) is not None:
        number, function, args = job
        failure: BaseException | None = None
        try:
            function(*args)
        except BaseException as error:  # noqa: BLE001  raised again by the caller
            failure = error
        del job, function, args  # or they would live until the next job
        answers.put((number, failure))
        del failure


def _nothing() -> None:
    """See :meth:`Team._settle`."""


def _stop(jobs: list[SimpleQueue[_Job | None]]) -> None:
    for each in jobs:
        each.put(None)
