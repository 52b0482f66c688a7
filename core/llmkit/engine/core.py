"""The engine's loop body: plan, launch, sample, book."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from llmkit.contracts.executor import Executor
from llmkit.contracts.scheduler import Scheduler
from llmkit.engine.drafts import SpeculativeDrafter
from llmkit.engine.grammars import GrammarManager
from llmkit.messages import (
    AddRequest,
    EngineStats,
    SamplePlan,
    StepOutput,
    StepOutputs,
    StepPlan,
    StepResult,
)
from llmkit.types import FinishReason

LOADING_S = 0.01
"""Between looks at grammars that are being loaded, where nothing else is to be done."""


class EngineCore:
    """Drives one scheduler and one executor; owns the steps in flight. Used by one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        grammars: GrammarManager | None = None,
        drafter: SpeculativeDrafter | None = None,
    ) -> None:
        """Without ``grammars``, a request that has one ends with an error. ``drafter`` is the scheduler's,
        closed with the engine.
        """
        self._drafter = drafter
        self._scheduler = scheduler
        self._executor = executor
        self._grammars = grammars
        self._loading: dict[str, AddRequest] = {}
        self._in_flight: deque[Future[StepResult]] = deque()
        self._open: set[str] = set()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight) or bool(self._loading)

    @property
    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def add(self, request: AddRequest) -> list[StepOutput]:
        """Queue a request, once its grammar is loaded; one that cannot be queued ends here, with an error."""
        if request.grammar is not None and request.request_id not in self._loading:
            if self._grammars is None:
                return [_failed(request.request_id, "this engine was built without grammars")]
            self._grammars.add(request)
            self._loading[request.request_id] = request
            self._open.add(request.request_id)
            return []
        return self._queue(request)

    def _queue(self, request: AddRequest) -> list[StepOutput]:
        try:
            self._scheduler.add(request)
        except ValueError as error:
            return self._book([_failed(request.request_id, str(error))])
        self._open.add(request.request_id)
        return []

    def abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        """End requests; unknown ids are ignored."""
        loading = [name for name in dict.fromkeys(request_ids) if self._loading.pop(name, None) is not None]
        early = [StepOutput(name, finish=FinishReason.ABORT) for name in loading]
        return self._book([*early, *self._scheduler.abort(request_ids)])

    def abort_all(self) -> list[StepOutput]:
        return self.abort(sorted(self._open))

    def step(self) -> StepOutputs | None:
        """Fill the executor with steps, then wait for the oldest; None when there is nothing to do.

        :raises EngineError: the step failed; the engine is of no use afterwards.
        """
        outputs = self._queue_loaded()
        while len(self._in_flight) < self._executor.max_concurrent_batches and self._scheduler.has_work:
            plan = self._scheduler.schedule()
            handle = self._executor.execute(plan)
            self._in_flight.append(self._executor.sample(handle, self._sample_plan(plan)))
            if not plan.rows:
                break
        if not self._in_flight:
            if self._loading and self._grammars is not None:
                self._grammars.wait(LOADING_S)
            return StepOutputs(outputs, self._scheduler.stats()) if outputs else None
        result = self._in_flight.popleft().result()
        outputs += self._book([self._constrained(output) for output in self._scheduler.update(result)])
        return StepOutputs(outputs, self._scheduler.stats())

    def fail(self, message: str) -> list[StepOutput]:
        """Last outputs of every open request after the engine failed."""
        outputs = [_failed(name, message) for name in sorted(self._open)]
        self._open.clear()
        return outputs

    def check_health(self) -> None:
        """:raises EngineError: a worker is dead or stuck."""
        self._executor.check_health()

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop the workers; idempotent."""
        if self._grammars is not None:
            self._grammars.shutdown()
        if self._drafter is not None:
            self._drafter.close()
        self._executor.shutdown(timeout_s)

    def _queue_loaded(self) -> list[StepOutput]:
        """Give the scheduler the requests whose grammar has been loaded since."""
        outputs: list[StepOutput] = []
        if self._grammars is None:
            return outputs
        for name, request in list(self._loading.items()):
            try:
                if self._grammars.ready(name):
                    del self._loading[name]
                    outputs += self._queue(request)
            except ValueError as error:
                del self._loading[name]
                outputs += self._book([_failed(name, str(error))])
        return outputs

    def _sample_plan(self, plan: StepPlan) -> SamplePlan:
        if self._grammars is None:
            return SamplePlan(plan.step)
        sampled = [(row.request_id, row.drafts) for row in plan.rows if row.num_logits]
        return SamplePlan(plan.step, *self._grammars.masks(sampled))

    def _constrained(self, output: StepOutput) -> StepOutput:
        """What a request's grammar makes of what it sampled: it may be complete, or broken."""
        if self._grammars is None or not output.token_ids:
            return output
        try:
            last = self._grammars.accept(output.request_id, output.token_ids)
        except ValueError as error:
            self._scheduler.abort([output.request_id])
            return msgspec.structs.replace(output, finish=FinishReason.ERROR, error=str(error))
        if last is None or output.finish is FinishReason.STOP:
            return output
        if output.finish is None:
            self._scheduler.abort([output.request_id])
        kept = last + 1
        return msgspec.structs.replace(
            output,
            token_ids=output.token_ids[:kept],
            logprobs=output.logprobs and output.logprobs[:kept],
            finish=FinishReason.STOP,
            complete=True,
        )

    def _book(self, outputs: list[StepOutput]) -> list[StepOutput]:
        ended = [output.request_id for output in outputs if output.finish is not None]
        self._open.difference_update(ended)
        if self._grammars is not None:
            for name in ended:
                self._grammars.remove(name)
        return outputs


def _failed(request_id: str, error: str) -> StepOutput:
    return StepOutput(request_id, finish=FinishReason.ERROR, error=error)
