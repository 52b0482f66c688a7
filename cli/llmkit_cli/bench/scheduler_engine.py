"""A real engine, scheduler, policy and block pool, whose model is a clock: no weights, no torch."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from llmkit.assemble.engine import build_engine
from llmkit.config import Config
from llmkit.contracts import (
    CheckpointInfo,
    ExecutorSpec,
    KVCacheSpec,
    KVLayout,
    ModelFiles,
    Progress,
    RowResult,
    SamplePlan,
    StepPlan,
    StepResult,
    WorkerReport,
)
from llmkit.engine.core import EngineCore
from llmkit.errors import EngineError
from llmkit.plugins import load_plugins
from llmkit.registry import CORE, Entry

VOCAB_SIZE = 32_000
_EXECUTOR = "simulated"
_TOKEN = [1]


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long the simulated model takes for a step: a fixed part and a part for every token."""

    step_s: float = 10e-3
    token_s: float = 20e-6


class SimulatedExecutor:
    """Answers every planned row with one token at once and adds up what a model would have taken.

    Its own CPU time is counted apart, so that it can be taken off what the engine takes.
    """

    max_concurrent_batches = 1

    def __init__(self, layers: tuple[KVCacheSpec, ...], cost: StepCost) -> None:
        self._layers = layers
        self._cost = cost
        self.model_s = 0.0
        """What the model would have taken so far."""
        self.own_s = 0.0
        """CPU time of this object so far."""
        self.rows = 0
        """In the last step."""
        self.tokens = 0
        """In the last step."""
        self.new: list[str] = []
        """Requests that the last step began or resumed."""

    def start(self, progress: Progress) -> WorkerReport:
        return WorkerReport(
            choices=(),
            layers=self._layers,
            kv_bytes=0,
            kv_why="a simulation",
            weight_bytes=0,
            vocab_size=VOCAB_SIZE,
            row_invariant=True,
        )

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        """There is no memory to cut."""

    def execute(self, plan: StepPlan) -> list[RowResult]:
        began = time.thread_time()
        results = [RowResult(row.request_id, _TOKEN) for row in plan.rows if row.num_logits]
        self.rows = len(plan.rows)
        self.tokens = sum(row.num_tokens for row in plan.rows)
        self.new = [row.request_id for row in plan.new]
        if plan.rows:
            self.model_s += self._cost.step_s + self._cost.token_s * self.tokens
        self.own_s += time.thread_time() - began
        return results

    def sample(self, handle: list[RowResult], plan: SamplePlan) -> Future[StepResult]:
        began = time.thread_time()
        future: Future[StepResult] = Future()
        future.set_result(StepResult(plan.step, handle))
        self.own_s += time.thread_time() - began
        return future

    def call(self, method: str, *args: Any) -> list[Any]:
        raise EngineError(f"a simulation has no worker method {method!r}")

    def check_health(self) -> None:
        """It is always well."""

    def shutdown(self, timeout_s: float) -> None:
        """There is nothing to stop."""


def build_simulated(
    config: Config, cost: StepCost, *, context: int, windows: tuple[int | None, ...] = (None,)
) -> tuple[EngineCore, SimulatedExecutor]:
    """The engine that ``serve`` would build from ``config``, over a :class:`SimulatedExecutor`.

    ``windows``: a group of layers each, full attention (None) or a sliding window. The pool's size is
    ``config.cache.num_gpu_blocks_override``, which must be given.
    """
    size = config.cache.block_size
    layers = tuple(
        KVCacheSpec("full" if window is None else "sliding", size, size, "simulated", window)
        for window in windows
    )
    executor = SimulatedExecutor(layers, cost)
    needed = {"policy": config.scheduler.scheduling_policy, "scheduler": config.scheduler.scheduler}
    components = load_plugins(config.plugins, needed).registry

    def make(spec: ExecutorSpec, options: Any = None) -> SimulatedExecutor:
        return executor

    components.add([Entry("executor", _EXECUTOR, make, CORE)])
    built = build_engine(
        _with_executor(config),
        ModelFiles(path="", name=_EXECUTOR, identity=_EXECUTOR),
        CheckpointInfo(architecture="", config={"max_position_embeddings": context}),
        components,
        lambda phase, fraction: None,
    )
    return built.core, executor


def _with_executor(config: Config) -> Config:
    return replace(config, parallel=replace(config.parallel, executor=f"{CORE}/{_EXECUTOR}"))
