"""The engine's loop body: plan, launch, sample, book."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from llmkit.contracts.executor import Executor
from llmkit.contracts.scheduler import Scheduler
from llmkit.messages import AddRequest, EngineStats, SamplePlan, StepOutput, StepOutputs, StepResult
from llmkit.types import FinishReason


class EngineCore:
    """Drives one scheduler and one executor; owns the steps in flight. Used by one thread."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._in_flight: deque[Future[StepResult]] = deque()
        self._open: set[str] = set()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight)

    @property
    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def add(self, request: AddRequest) -> list[StepOutput]:
        """Queue a request; one that cannot be queued ends here, with an error output."""
        try:
            self._scheduler.add(request)
        except ValueError as error:
            return [StepOutput(request.request_id, finish=FinishReason.ERROR, error=str(error))]
        self._open.add(request.request_id)
        return []

    def abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        """End requests; unknown ids are ignored."""
        return self._book(self._scheduler.abort(request_ids))

    def abort_all(self) -> list[StepOutput]:
        return self.abort(sorted(self._open))

    def step(self) -> StepOutputs | None:
        """Fill the executor with steps, then wait for the oldest; None when there is nothing to do.

        :raises EngineError: the step failed; the engine is of no use afterwards.
        """
        while len(self._in_flight) < self._executor.max_concurrent_batches and self._scheduler.has_work:
            plan = self._scheduler.schedule()
            handle = self._executor.execute(plan)
            self._in_flight.append(self._executor.sample(handle, SamplePlan(plan.step)))
            if not plan.rows:
                break
        if not self._in_flight:
            return None
        result = self._in_flight.popleft().result()
        return StepOutputs(self._book(self._scheduler.update(result)), self._scheduler.stats())

    def fail(self, message: str) -> list[StepOutput]:
        """Last outputs of every open request after the engine failed."""
        outputs = [StepOutput(name, finish=FinishReason.ERROR, error=message) for name in sorted(self._open)]
        self._open.clear()
        return outputs

    def check_health(self) -> None:
        """:raises EngineError: a worker is dead or stuck."""
        self._executor.check_health()

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop the workers; idempotent."""
        self._executor.shutdown(timeout_s)

    def _book(self, outputs: list[StepOutput]) -> list[StepOutput]:
        self._open.difference_update(output.request_id for output in outputs if output.finish is not None)
        return outputs
