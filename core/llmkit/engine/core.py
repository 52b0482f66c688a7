"""The engine: requests in, outputs out, over a loop that drives scheduler and executor."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmkit.contracts.executor import Executor
from llmkit.contracts.scheduler import Scheduler
from llmkit.engine.drafts import SpeculativeDrafter
from llmkit.engine.grammars import GrammarManager
from llmkit.engine.loops import Loop, OverlappedLoop, PlainLoop
from llmkit.engine.sleep import Sleep
from llmkit.errors import EngineError, LlmkitError
from llmkit.messages import (
    AddRequest,
    Call,
    CallAnswer,
    EngineStats,
    SamplePlan,
    StepOutput,
    StepOutputs,
    StepPlan,
)
from llmkit.types import FinishReason

LOADING_PATIENCE_S = 0.005
"""How long an engine with nothing to do waits for a grammar before it looks for messages again."""

_OWN_CALLS = frozenset({"sleep", "wake_up"})
"""Workers' methods that only the engine may call, which has to know."""

_log = logging.getLogger(__name__)


class EngineCore:
    """Owns one scheduler, one executor and the loop between them. Used by one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        grammars: GrammarManager | None = None,
        drafter: SpeculativeDrafter | None = None,
        *,
        overlapped: bool = False,
        inner: Sequence[EngineCore] = (),
    ) -> None:
        """``grammars``, whose ``accept`` the scheduler calls, and its ``drafter`` close with the engine.
        ``inner`` are engines that the drafter drives: they sleep and wake up with this one.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._grammars = grammars
        self._drafter = drafter
        loop = OverlappedLoop if overlapped else PlainLoop
        self._loop: Loop = loop(scheduler, executor, self._sample_plan)
        self._settled: list[StepOutput] = []
        """Outputs of steps that a call waited for; whatever is given next begins with them."""
        self._sleep: Sleep = Sleep(scheduler, executor, [core._sleep for core in inner])
        self._methods: Mapping[str, Callable[..., Any]] = {
            "reset_prefix_cache": scheduler.reset_prefix_cache,
            "sleep": self._fall_asleep,
            "wake_up": self._wake_up,
            "asleep": lambda: self._sleep.asleep,
            "start_profile": lambda: executor.call("start_profile"),
            "stop_profile": lambda: executor.call("stop_profile"),
        }
        """What a front may call by name."""
        self._open: set[str] = set()
        self._loading: dict[str, AddRequest] = {}
        """Requests whose grammar or vocabulary is not there yet; the scheduler does not know them."""

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or self._loop.busy or bool(self._loading or self._settled)

    @property
    def stats(self) -> EngineStats:
        stats = self._scheduler.stats()
        if self._loading:
            stats = msgspec.structs.replace(stats, waiting=stats.waiting + len(self._loading))
        return stats

    def add(self, request: AddRequest) -> list[StepOutput]:
        """Queue a request; one that cannot be queued ends here, with an error output."""
        if self._sleep.asleep:
            return [_failed(request.request_id, "the engine sleeps: wake it up first")]
        if request.grammar is None and request.thinking is None:
            return self._queue(request)
        name = request.request_id
        if name in self._open:
            return [_failed(name, f"request id {name!r} is already in use")]
        if self._grammars is None:
            return [_failed(name, "this engine has no grammars")]
        self._grammars.add(request)
        self._loading[name] = request
        self._open.add(name)
        return []

    def abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        """End requests; unknown ids are ignored."""
        loading = [name for name in dict.fromkeys(request_ids) if self._loading.pop(name, None) is not None]
        outputs = [StepOutput(name, finish=FinishReason.ABORT) for name in loading]
        return self._take_settled() + self._book(outputs + self._scheduler.abort(request_ids))

    def abort_all(self) -> list[StepOutput]:
        return self.abort(sorted(self._open))

    def step(self) -> StepOutputs | None:
        """One turn of the loop; None when there is nothing to do.

        :raises EngineError: the step failed; the engine is of no use afterwards.
        """
        if self._loading:
            self._settled += self._queue_loaded()
        stepped = self._loop.turn()
        outputs = self._take_settled()
        if stepped is None and not outputs:
            return None
        return StepOutputs(outputs + self._book(stepped or []), self.stats)

    def call(self, call: Call) -> CallAnswer:
        """Run what a front asks for, once no step is in flight; whatever it does, the engine goes on.

        :raises EngineError: a step that it waited for failed.
        """
        self._settled += self._book(self._loop.settle())
        try:
            value = self._method(call)(*call.args)
            msgspec.msgpack.encode(value)
        except LlmkitError as error:
            return CallAnswer(call.call_id, error=str(error))
        except Exception as error:  # noqa: BLE001 - a plugin's method, quarantined: the caller is told
            _log.exception("%s of the %s failed", call.method, call.target)
            return CallAnswer(call.call_id, error=f"{call.method} failed: {type(error).__name__}: {error}")
        return CallAnswer(call.call_id, value)

    def _method(self, call: Call) -> Callable[..., Any]:
        """:raises EngineError: there is none of this name."""
        if call.target == "workers":
            if call.method in _OWN_CALLS:
                raise EngineError(f"{call.method!r} is a call for the engine, which calls its workers")
            return functools.partial(self._executor.call, call.method)
        method = self._methods.get(call.method)
        if method is None:
            raise EngineError(f"the engine has no method {call.method!r}")
        try:
            inspect.signature(method).bind(*call.args)
        except TypeError:
            raise EngineError(f"the engine has no method {call.method!r} for {call.args}") from None
        return method

    def _fall_asleep(self, level: int) -> list[str]:
        """:raises EngineError: requests are under way, or the executor cannot."""
        if self._open:
            raise EngineError(f"{len(self._open)} requests are under way; the engine sleeps without any")
        while (stepped := self._loop.turn()) is not None:  # what workers are still to be told
            self._settled += self._book(stepped)
        self._sleep.sleep(level)
        return self._sleep.asleep

    def _wake_up(self, tags: Sequence[str]) -> list[str]:
        self._sleep.wake_up(tags)
        return self._sleep.asleep

    def fail(self, message: str) -> list[StepOutput]:
        """What is left to give after the engine failed: last outputs of every open request among it."""
        outputs = [_failed(name, message) for name in sorted(self._open)]
        self._open.clear()
        return self._take_settled() + outputs

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

    def _take_settled(self) -> list[StepOutput]:
        settled, self._settled = self._settled, []
        return settled

    def _queue(self, request: AddRequest) -> list[StepOutput]:
        try:
            self._scheduler.add(request)
        except ValueError as error:
            return [_failed(request.request_id, str(error))]
        self._open.add(request.request_id)
        return []

    def _queue_loaded(self) -> list[StepOutput]:
        """Queue requests whose grammar is there, and end those whose grammar cannot be loaded.

        Waits a moment where there is nothing else to do.
        """
        assert self._grammars is not None, "grammars are loading"
        if not self._loop.busy and not self._scheduler.has_work:
            self._grammars.wait(LOADING_PATIENCE_S)
        outputs: list[StepOutput] = []
        for name, request in list(self._loading.items()):
            try:
                if not self._grammars.ready(name):
                    continue
            except ValueError as error:
                outputs.append(_failed(name, str(error)))
            else:
                outputs += self._queue(request)
            del self._loading[name]
        return self._book(outputs)

    def _sample_plan(self, plan: StepPlan) -> SamplePlan:
        if self._grammars is None:
            return SamplePlan(plan.step)
        rows = [(row.request_id, row.drafts) for row in plan.rows if row.num_logits]
        return SamplePlan(plan.step, *self._grammars.masks(rows))

    def _book(self, outputs: list[StepOutput]) -> list[StepOutput]:
        ended = [output.request_id for output in outputs if output.finish is not None]
        self._open.difference_update(ended)
        if self._grammars is not None:
            for name in ended:
                self._grammars.remove(name)
        return outputs


def _failed(request_id: str, error: str) -> StepOutput:
    return StepOutput(request_id, finish=FinishReason.ERROR, error=error)
