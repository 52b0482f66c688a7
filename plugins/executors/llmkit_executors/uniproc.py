"""Executor ``uniproc``: one worker, in the engine's process and thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from llmkit import EngineDead, EngineError
from llmkit.contracts import (
    ExecutorSpec,
    KVLayout,
    Progress,
    SamplePlan,
    StepPlan,
    StepResult,
    WorkerReport,
)
from llmkit.worker import Worker

T = TypeVar("T")


@dataclass(slots=True)
class Launched:
    """A step under way; ``failure`` is what its forward ended with."""

    step: int
    failure: EngineError | None = None


class UniprocExecutor:
    """Runs each step to its end where it is called; its futures are always done."""

    max_concurrent_batches = 1

    def __init__(self, spec: ExecutorSpec) -> None:
        self._spec = spec
        self._worker: Worker | None = None
        self._closed = False
        self._broken: EngineError | None = None

    @property
    def worker(self) -> Worker:
        """:raises EngineDead: before ``start`` and after ``shutdown``."""
        if self._worker is None:
            raise EngineDead("the worker is shut down" if self._closed else "the worker is not started")
        return self._worker

    def start(self, progress: Progress) -> WorkerReport:
        self._worker = Worker(self._spec)
        return self._worker.load(progress)

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        self.worker.allocate(layout, progress)

    def execute(self, plan: StepPlan) -> Launched:
        """A failure waits in the handle for :meth:`sample`, as with a worker elsewhere."""
        worker = self.worker
        try:
            self._guard(lambda: worker.execute(plan))
        except EngineError as failure:
            return Launched(plan.step, failure)
        return Launched(plan.step)

    def sample(self, handle: Launched, plan: SamplePlan) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        worker = self.worker
        try:
            if handle.failure is not None:
                raise handle.failure
            future.set_result(self._guard(lambda: worker.sample(plan)))
        except EngineError as failure:
            future.set_exception(failure)
        return future

    def call(self, method: str, *args: Any) -> list[Any]:
        return [self.worker.call(method, args)]

    def check_health(self) -> None:
        """A step that failed left the batch in an unknown state: the worker counts as dead."""
        _ = self.worker
        if self._broken is not None:
            raise self._broken

    def shutdown(self, timeout_s: float) -> None:
        """Nothing can be under way here, so nothing is waited for."""
        self._closed = True
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _guard(self, run: Callable[[], T]) -> T:
        """:raises EngineError: whatever ``run`` raised, with it as the cause."""
        try:
            return run()
        except EngineError as failure:
            self._broken = failure
            raise
        except Exception as failure:
            self._broken = EngineError(f"a step failed: {type(failure).__name__}: {failure}")
            raise self._broken from failure
