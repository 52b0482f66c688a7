"""Executor ``uniproc`` under ``--async-scheduling``: one worker, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from llmkit import EngineDead
from llmkit.contracts import (
    ExecutorSpec,
    KVLayout,
    Progress,
    SamplePlan,
    StepPlan,
    StepResult,
    WorkerReport,
)
from llmkit_executors.uniproc import Launched, UniprocExecutor

T = TypeVar("T")


class ThreadedExecutor:
    """Runs a :class:`UniprocExecutor` in one thread, in the order of the calls.

    The thread alone touches the worker from ``start`` on: torch's settings are a thread's own.
    """

    max_concurrent_batches = 2

    def __init__(self, spec: ExecutorSpec) -> None:
        self._inner = UniprocExecutor(spec)
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="llmkit-worker", daemon=True)
        self._thread.start()

    def start(self, progress: Progress) -> WorkerReport:
        return self._submit(lambda: self._inner.start(progress)).result()

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        self._submit(lambda: self._inner.allocate(layout, progress)).result()

    def execute(self, plan: StepPlan) -> Future[Launched]:
        return self._submit(lambda: self._inner.execute(plan))

    def sample(self, handle: Future[Launched], plan: SamplePlan) -> Future[StepResult]:
        return self._submit(lambda: self._inner.sample(handle.result(), plan).result())

    def call(self, method: str, *args: Any) -> list[Any]:
        return self._submit(lambda: self._inner.call(method, *args)).result()

    def check_health(self) -> None:
        if self._closed:
            raise EngineDead("the worker is shut down")
        self._inner.check_health()

    def shutdown(self, timeout_s: float) -> None:
        """Waits for the step under way; a worker that is still busy then is left to end with the process."""
        if not self._closed:
            self._closed = True
            self._tasks.put(lambda: self._inner.shutdown(0))
            self._tasks.put(None)
        self._thread.join(timeout_s)

    def _submit(self, run: Callable[[], T]) -> Future[T]:
        """:raises EngineDead: after ``shutdown``; what waits when that is called gets it in its future."""
        if self._closed:
            raise EngineDead("the worker is shut down")
        future: Future[T] = Future()

        def task() -> None:
            if self._closed:
                future.set_exception(EngineDead("the worker is shut down"))
                return
            try:
                future.set_result(run())
            except BaseException as failure:  # noqa: BLE001 - it belongs to whoever waits for the future
                future.set_exception(failure)

        self._tasks.put(task)
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
