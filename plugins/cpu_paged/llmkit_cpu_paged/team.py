"""A few threads that run one kernel together, without OpenMP and its spinning."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Team:
    """The caller and ``num_threads - 1`` sleeping helpers. One caller at a time; owns its threads.

    A helper costs the caller tens of microseconds to wake, so small work is better done alone. Kernels
    release the GIL and share work among themselves.
    """

    def __init__(self, num_threads: int) -> None:
        self.size = num_threads
        self._job: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._failure: BaseException | None = None
        self._helpers = [_Helper(self) for _ in range(num_threads - 1)]

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """``function(*args)`` in every thread; returns when all have returned.

        The first exception a helper met is raised here.
        """
        self._job = (function, args)
        for helper in self._helpers:
            helper.start.release()
        try:
            function(*args)
        finally:
            for helper in self._helpers:
                helper.done.acquire()
            self._job = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def work(self) -> None:
        """A helper's share of the job at hand."""
        assert self._job is not None
        function, args = self._job
        try:
            function(*args)
        except BaseException as failure:  # noqa: BLE001  raised again in the caller's thread
            self._failure = failure


class _Helper:
    """A daemon thread between two locks that serve as binary semaphores."""

    def __init__(self, team: Team) -> None:
        self.start = threading.Lock()
        self.done = threading.Lock()
        self.start.acquire()
        self.done.acquire()
        self._team = team
        threading.Thread(target=self._serve, name="cpu-paged", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.start.acquire()
            self._team.work()
            self.done.release()
