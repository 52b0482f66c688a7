from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmkit import EngineDead
from llmkit.config import SchedulerConfig
from llmkit.contracts import Executor, NewRow, RowPlan, SamplePlan, SamplingParams, StepPlan
from llmkit.errors import StartupError
from llmkit.registry import Entry
from llmkit.testing.executors import ExecutorContract
from llmkit_executors.plugin import make_uniproc
from tests.core.worker.toy import ToyModel, layout_for, registry, toy_spec

ASYNC = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=True)
TIMEOUT_S = 60.0


class TestThreaded(ExecutorContract):
    def make(self, tmp_path: Path) -> Executor:
        return make_uniproc(toy_spec(scheduler=ASYNC), None)


def quiet(phase: str, fraction: float) -> None:
    """A progress nobody watches."""


class Gated(ToyModel):
    """Once closed, its forward waits for the gate."""

    gate = threading.Event()
    entered = threading.Event()

    def forward(self, inputs: Any, ctx: Any, state: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)
        return super().forward(inputs, ctx, state)


@pytest.fixture
def gated() -> Any:
    Gated.gate, Gated.entered = threading.Event(), threading.Event()
    Gated.gate.set()
    components = registry()
    components.add([Entry("model", "gated", lambda spec, parts, _: Gated(spec, parts), "other", priority=5)])
    executor = make_uniproc(toy_spec(scheduler=ASYNC, components=components), None)
    executor.allocate(layout_for(executor.start(quiet), 64), quiet)
    Gated.gate.clear()
    Gated.entered.clear()
    yield executor
    Gated.gate.set()
    executor.shutdown(TIMEOUT_S)


def launch(executor: Any, step: int) -> Any:
    new = [NewRow(f"r{step}", [1, 2], 2, SamplingParams(temperature=0), 0, 0, (), [[1], [2]])]
    rows = [RowPlan(f"r{step}", 0, 2, 1, [], [[], []])]
    return executor.sample(executor.execute(StepPlan(step, rows, new=new)), SamplePlan(step))


def test_the_caller_goes_on_while_a_step_runs(gated: Any) -> None:
    first, second = launch(gated, 1), launch(gated, 2)
    assert Gated.entered.wait(TIMEOUT_S)
    assert not first.done()
    gated.check_health()
    Gated.gate.set()
    assert [future.result(TIMEOUT_S).step for future in (first, second)] == [1, 2]


def test_a_shutdown_gives_up_on_a_worker_that_is_busy_and_fails_what_waits(gated: Any) -> None:
    launch(gated, 1)
    second = launch(gated, 2)
    assert Gated.entered.wait(TIMEOUT_S)
    gated.shutdown(0.01)
    with pytest.raises(EngineDead):
        launch(gated, 3)
    Gated.gate.set()
    assert isinstance(second.exception(TIMEOUT_S), EngineDead)


def test_a_start_that_fails_says_why_in_the_callers_thread() -> None:
    spec = toy_spec(scheduler=ASYNC)
    bad = replace(spec, config=replace(spec.config, model=replace(spec.config.model, max_model_len=1)))
    executor = make_uniproc(bad, None)
    with pytest.raises(StartupError, match="--max-model-len"):
        executor.start(quiet)
    executor.shutdown(TIMEOUT_S)
