"""The two loops that an engine may run in: one step after the other, or the next planned while one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from llmkit.contracts.executor import Executor
from llmkit.contracts.scheduler import Scheduler
from llmkit.messages import SamplePlan, StepOutput, StepPlan, StepResult

MakeSamplePlan = Callable[[StepPlan], SamplePlan]
"""Asked once a step, as late as the loop allows: masks follow from all that was booked before."""


class Loop(Protocol):
    """Owns the steps in flight."""

    @property
    def busy(self) -> bool:
        """Whether a step is in flight."""

    def turn(self) -> list[StepOutput] | None:
        """Launch what can be, then wait for the oldest step; None when there is nothing to do.

        :raises EngineError: the step failed; the engine is of no use afterwards.
        """

    def settle(self) -> list[StepOutput]:
        """Wait for all that is in flight."""


class PlainLoop:
    """Plans a step when an executor has room for it, and samples it at once.

    An executor that takes several (a pipeline) gets them as long as there is anybody whose sample is not
    awaited.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, sample_plan: MakeSamplePlan) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._sample_plan = sample_plan
        self._in_flight: deque[Future[StepResult]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._in_flight)

    def turn(self) -> list[StepOutput] | None:
        while len(self._in_flight) < self._executor.max_concurrent_batches and self._scheduler.has_work:
            plan = self._scheduler.schedule()
            handle = self._executor.execute(plan)
            self._in_flight.append(self._executor.sample(handle, self._sample_plan(plan)))
            if not plan.rows:
                break
        if not self._in_flight:
            return None
        return self._scheduler.update(self._in_flight.popleft().result())

    def settle(self) -> list[StepOutput]:
        outputs: list[StepOutput] = []
        while self._in_flight:
            outputs += self._scheduler.update(self._in_flight.popleft().result())
        return outputs


class OverlappedLoop:
    """Plans a step and launches its forward while the one before it runs; ``--async-scheduling``.

    What a request samples in between is a placeholder in the plan. Masks are made, and sampling follows,
    once the step before is booked, so every mask is of the place where its request really is.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, sample_plan: MakeSamplePlan) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._sample_plan = sample_plan
        self._running: Future[StepResult] | None = None

    @property
    def busy(self) -> bool:
        return self._running is not None

    def turn(self) -> list[StepOutput] | None:
        if self._running is None:
            self._running = self._sample(self._launch())
            if self._running is None:
                return None
        following = self._launch()
        outputs = self._scheduler.update(self._running.result())
        self._running = self._sample(following)
        return outputs

    def settle(self) -> list[StepOutput]:
        if self._running is None:
            return []
        running, self._running = self._running, None
        return self._scheduler.update(running.result())

    def _launch(self) -> tuple[StepPlan, Any] | None:
        if not self._scheduler.has_work:
            return None
        plan = self._scheduler.schedule()
        return plan, self._executor.execute(plan)

    def _sample(self, launched: tuple[StepPlan, Any] | None) -> Future[StepResult] | None:
        if launched is None:
            return None
        plan, handle = launched
        return self._executor.sample(handle, self._sample_plan(plan))
