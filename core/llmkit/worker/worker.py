"""A worker: one process's share of the model, driven by an executor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from llmkit.config import machine
from llmkit.contracts import (
    ExecutorSpec,
    KVConnector,
    KVConnectorSpec,
    KVLayout,
    KVMover,
    Progress,
    SamplePlan,
    StepPlan,
    StepResult,
    WeightRef,
    WorkerReport,
)
from llmkit.errors import EngineError
from llmkit.worker.batch import Batch, BatchLimits
from llmkit.worker.kv_memory import BlockMemory
from llmkit.worker.memory_budget import kv_budget
from llmkit.worker.methods import Handle, Methods
from llmkit.worker.model_draft import prepare_model
from llmkit.worker.model_runner import ModelRunner, PendingStep
from llmkit.worker.parts import Parts, choose_parts, resolve_machine
from llmkit.worker.processors import make_processors
from llmkit.worker.profile import Profiler
from llmkit.worker.sampler import Sampler
from llmkit.worker.sampling_state import SamplingState
from llmkit.worker.sleep import collected
from llmkit.worker.warmup import warm_up


class Worker:
    """Chooses the parts, holds the weights, the KV memory and the batch, and runs steps.

    Lifetime: ``load`` -> ``allocate`` -> (``execute`` -> ``sample``)... -> ``close``. Between steps it may
    sleep and wake up. One thread. Since 0.1.
    """

    def __init__(self, spec: ExecutorSpec) -> None:
        self._spec = spec
        self.machine = resolve_machine(spec)
        torch.set_num_threads(self.machine.threads)
        self._parts: Parts | None = None
        self._runner: ModelRunner | None = None
        self._pending: dict[int, PendingStep] = {}
        self._mover: KVMover | None = None
        self._layout: KVLayout | None = None
        self._memory: BlockMemory | None = None
        self._profiler = Profiler(spec.config.observability.profiler_dir)
        self._methods = self._own_methods()

    @property
    def runner(self) -> ModelRunner:
        """:raises EngineError: ``allocate`` has not run, or ``close`` has."""
        if self._runner is None:
            raise EngineError("the worker has no KV memory: it was not allocated, or it is closed")
        return self._runner

    def load(self, progress: Progress) -> WorkerReport:
        """Choose every component and read the weights.

        :raises StartupError: in the words of whatever refused; CheckpointError for bad weights.
        """
        progress("choosing components", 0.0)
        parts = self._parts = choose_parts(self._spec, self.machine)
        _load_weights(parts, progress)
        if parts.pooler is not None:
            parts.pooler.load()
        touched = prepare_model(parts.model, parts.model_spec, self._spec.model_hooks)
        handle = Handle(parts.model, parts.model_spec.rank, self.machine.device)
        self._methods.add_plugins(self._spec.components, handle)
        weight_bytes = parts.model.weight_bytes
        kv_bytes, why = kv_budget(self._spec.config.cache, machine.memory(), weight_bytes)
        return WorkerReport(
            choices=(*parts.choices, *touched),
            layers=parts.kv_specs,
            kv_bytes=kv_bytes,
            kv_why=why,
            weight_bytes=weight_bytes,
            vocab_size=parts.model.vocab_size,
            row_invariant=parts.row_invariant,
        )

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        """Cut the pool, bind the backend and warm up.

        :raises OutOfMemory: the pool does not fit.
        """
        parts = self._parts
        if parts is None:
            raise EngineError("the worker is to allocate its KV memory before its weights are loaded")
        progress("allocating the KV cache", 0.0)
        memory = BlockMemory(layout, parts.kv_specs, self.machine.torch_device)
        self._layout, self._memory = layout, memory
        parts.backend.bind(memory)
        self._mover = self._connect(layout, memory)
        limits = self._limits(parts, layout)
        vocab_size = parts.model.vocab_size
        processors = make_processors(self._spec.components, vocab_size, self.machine.device)
        state = SamplingState(limits.max_rows, vocab_size, processors)
        self._runner = ModelRunner(
            parts.model,
            parts.backend,
            parts.backend.make_plan(limits.max_tokens, limits.max_rows, limits.max_blocks),
            memory,
            Batch(limits, state),
            Sampler(state, processed=self._spec.config.model.logprobs_mode == "processed"),
            self._mover,
            parts.pooler,
        )
        warm_up(self._runner, limits, progress, pooling=parts.pooler is not None)

    def execute(self, plan: StepPlan) -> None:
        """Apply the plan and run its forward; :meth:`sample` of the same step follows."""
        self._pending[plan.step] = self.runner.execute(plan)

    def sample(self, plan: SamplePlan) -> StepResult:
        """Sample a step that :meth:`execute` launched.

        :raises EngineError: it launched no such step.
        """
        pending = self._pending.pop(plan.step, None)
        if pending is None:
            raise EngineError(f"step {plan.step} is to be sampled, but it was not launched")
        return self.runner.sample(pending, plan)

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Run a named method between steps; arguments and answer are plain msgpack values.

        :raises EngineError: there is no such method, or it failed.
        """
        return self._methods.call(method, args)

    def close(self) -> None:
        """Free weights and KV memory; idempotent."""
        if self._mover is not None:
            self._mover.close()
        self._runner = self._parts = self._mover = self._memory = None
        self._pending.clear()
        self._methods = self._own_methods()

    def sleep(self, level: int) -> None:
        """Give memory back between steps: of the KV pool, at level 2 of the weights too.

        On a CPU the weights are in the host's memory already and stay there at level 1.
        """
        if level == 2:
            with collected():
                self.close()
        elif self._memory is not None:
            self._memory.give_back()

    def wake_up(self, tags: Sequence[str]) -> None:
        """Take memory again: ``weights`` reads them from the checkpoint as at the start, ``kv_cache`` cuts
        the pool. What is there already stays.

        :raises EngineError: the KV cache is to be there before the weights. :raises StartupError: the
            checkpoint cannot be read any more.
        """
        if "weights" in tags and self._parts is None:
            try:
                self.load(_no_progress)
            except BaseException:
                self.close()
                raise
        if "kv_cache" in tags and self._runner is None:
            if self._layout is None:
                raise EngineError("the worker cannot wake up: it was never allocated")
            if self._parts is None:
                raise EngineError("the KV cache cannot wake up before the weights")
            self.allocate(self._layout, _no_progress)

    def _own_methods(self) -> Methods:
        return Methods(
            {
                "describe": self._describe,
                "sleep": self.sleep,
                "wake_up": self.wake_up,
                "start_profile": self._profiler.start,
                "stop_profile": self._profiler.stop,
            }
        )

    def _describe(self) -> dict[str, Any]:
        """Where this worker runs."""
        return {
            "pid": os.getpid(),
            "device": self.machine.device,
            "dtype": self.machine.dtype,
            "threads": self.machine.threads,
        }

    def _connect(self, layout: KVLayout, memory: BlockMemory) -> KVMover | None:
        """This worker's side of the KV connector that was asked for."""
        name = self._spec.config.cache.kv_connector
        if name is None:
            return None
        spec = KVConnectorSpec(self._spec.config, layout)
        connector: KVConnector = self._spec.components.create("connector", name, spec)
        return connector.mover(memory)

    def _limits(self, parts: Parts, layout: KVLayout) -> BatchLimits:
        """Buffer sizes; no row outgrows the model's context or the pool."""
        scheduler = self._spec.config.scheduler
        longest = parts.model_spec.max_model_len
        for group in layout.groups:
            if group.spec.window is None:
                longest = min(longest, (layout.num_blocks - 1) * group.spec.block_size)
        return BatchLimits(
            max_rows=scheduler.max_num_seqs,
            max_tokens=max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs),
            max_len=longest,
            block_sizes=tuple(group.spec.block_size for group in layout.groups),
        )


def _no_progress(phase: str, fraction: float) -> None:
    """Nobody looks."""


def _load_weights(parts: Parts, progress: Progress) -> None:
    """Give the model its weights, saying how far it is."""
    refs = list(parts.loader.weights())
    total = sum(prod(ref.shape) for ref in refs) or 1
    done = 0

    def on_weight(ref: WeightRef) -> None:
        nonlocal done
        done += prod(ref.shape)
        progress("loading weights", min(done / total, 1.0))

    with torch.no_grad():
        parts.model.load(refs, on_weight)
