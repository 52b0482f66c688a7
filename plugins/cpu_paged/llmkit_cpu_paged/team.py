"""A few threads that run one kernel together, without OpenMP and its spinning."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any


class Team:
    """The caller and ``num_threads - 1`` sleeping helpers, which end with it. One caller at a time.

    A helper costs the caller about ten microseconds to wake, so small work is better done alone. Kernels
    release the GIL and share work among themselves.
    """

    def __init__(self, num_threads: int) -> None:
        self._helpers = [_Helper() for _ in range(num_threads - 1)]
        weakref.finalize(self, _stop, self._helpers)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """``function(*args)`` in every thread; returns when all have returned.

        An exception in a helper is raised here.
        """
        for helper in self._helpers:
            helper.begin(function, args)
        try:
            function(*args)
        finally:
            failures = [helper.wait() for helper in self._helpers]
        for failure in failures:
            if failure is not None:
                raise failure


class _Helper:
    """A daemon thread between two locks that serve as binary semaphores; one function at a time."""

    def __init__(self) -> None:
        self._start = threading.Lock()
        self._done = threading.Lock()
        self._start.acquire()
        self._done.acquire()
        self._job: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._failure: BaseException | None = None
        threading.Thread(target=self._serve, name="cpu-paged", daemon=True).start()

    def begin(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._job = (function, args)
        self._start.release()

    def wait(self) -> BaseException | None:
        """Until the function has returned; what it raised."""
        self._done.acquire()
        self._job = None
        failure, self._failure = self._failure, None
        return failure

    def stop(self) -> None:
        self._job = None
        self._start.release()

    def _serve(self) -> None:
        while True:
            self._start.acquire()
            if self._job is None:
                return
            function, args = self._job
            try:
                function(*args)
            except BaseException as failure:  # noqa: BLE001  raised again by the caller
                self._failure = failure
            del function, args
            self._done.release()


def _stop(helpers: list[_Helper]) -> None:
    for helper in helpers:
        helper.stop()
