"""From a configuration to an engine that answers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from llmkit.assemble.draft import DraftedFor
from llmkit.assemble.grammars import grammar_manager
from llmkit.assemble.pooling import with_room_for_prompts
from llmkit.assemble.speculator import make_speculator
from llmkit.config import Config
from llmkit.contracts.connector import KVConnector, KVConnectorSpec, KVDirectory
from llmkit.contracts.executor import Executor, ExecutorSpec
from llmkit.contracts.model import ModelHook
from llmkit.contracts.scheduler import Scheduler, SchedulerSpec
from llmkit.contracts.weights import CheckpointInfo, ModelFiles, Progress
from llmkit.engine.core import EngineCore
from llmkit.engine.drafts import SpeculativeDrafter
from llmkit.engine.layout import KVBudget, PlannedLayout, check_context, plan_layout
from llmkit.engine.prefix import cache_root
from llmkit.engine.scheduler import CONTINUOUS, ContinuousScheduler
from llmkit.errors import StartupError, UsageError
from llmkit.messages import Choice, EngineReady, WorkerReport
from llmkit.registry import CORE, Entry, Registry


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """A started engine and what to tell those who wait for it."""

    core: EngineCore
    ready: EngineReady


def build_engine(
    config: Config,
    files: ModelFiles,
    info: CheckpointInfo,
    components: Registry,
    progress: Progress,
    model_hooks: tuple[ModelHook, ...] = (),
) -> BuiltEngine:
    """Choose and start an executor, cut its KV memory and put a scheduler over it.

    Adds the core's own scheduler to ``components``; ``model_hooks`` run in the workers of this process.

    :raises UsageError: something asked for by name cannot be honoured.
    :raises StartupError: the model cannot be served here, in the words of whatever refused.
    """
    check_context(info.context_length, config.model.max_model_len)  # before tables are made that long
    config = with_room_for_prompts(config, info)
    _register_core(components)
    spec = ExecutorSpec(config, files, info, components, model_hooks)
    choice = components.choose("executor", config.parallel.executor, spec)
    executor: Executor = components.create("executor", choice.name, spec)
    with ExitStack() as undo:
        undo.callback(executor.shutdown, 0)
        report = _start(executor, choice.name, config, progress)
        planned = plan_layout(
            KVBudget(report.layers, report.kv_bytes, report.kv_why),
            config.cache,
            config.scheduler,
            model_len=info.context_length,
            max_model_len=config.model.max_model_len,
        )
        if info.pooling is not None and not planned.layout.groups:
            planned = _within_a_step(planned, config.scheduler.max_num_batched_tokens)
        directory, connectors = _make_directory(config, planned, components)
        executor.allocate(planned.layout, progress)
        target = DraftedFor(config, planned.layout, planned.max_model_len, report.vocab_size)
        speculation = make_speculator(target, components, _build_draft, progress)
        grammars = grammar_manager(config, files, info, components, report.vocab_size)
        drafter = SpeculativeDrafter(speculation.speculator, grammars, report.vocab_size)
        undo.callback(drafter.close)
        policy_choice = components.choose("policy", config.scheduler.scheduling_policy, config.scheduler)
        scheduler_spec = SchedulerSpec(
            scheduler=config.scheduler,
            cache=config.cache,
            layout=planned.layout,
            block_size=config.cache.block_size,
            max_model_len=planned.max_model_len,
            cache_root=cache_root(config.cache.prefix_cache_salt, files.identity, report.layers),
            policy=components.create("policy", policy_choice.name, config.scheduler),
            drafter=drafter,
            accept=grammars.accept,
            directory=directory,
        )
        scheduler_choice = components.choose("scheduler", config.scheduler.scheduler, scheduler_spec)
        scheduler: Scheduler = components.create("scheduler", scheduler_choice.name, scheduler_spec)
        undo.pop_all()
    return BuiltEngine(
        EngineCore(
            scheduler,
            executor,
            grammars,
            drafter,
            overlapped=config.scheduler.async_scheduling,
            inner=speculation.engines,
        ),
        EngineReady(
            max_model_len=planned.max_model_len,
            vocab_size=report.vocab_size,
            num_blocks=planned.layout.num_blocks,
            block_size=config.cache.block_size,
            kv_bytes=planned.layout.total_bytes,
            weight_bytes=report.weight_bytes,
            stats=scheduler.stats(),
            choices=(
                choice,
                *report.choices,
                scheduler_choice,
                policy_choice,
                *speculation.choices,
                *connectors,
            ),
            notes=(*planned.notes, *speculation.notes),
        ),
    )


def _start(executor: Executor, name: str, config: Config, progress: Progress) -> WorkerReport:
    """:raises StartupError: it cannot do what a flag asks for (:class:`UsageError` where that is plain
    before it starts)."""
    if config.scheduler.async_scheduling and executor.max_concurrent_batches < 2:
        raise UsageError(f"--async-scheduling: executor {name!r} takes one step at a time")
    report = executor.start(progress)
    if config.model.deterministic and not report.row_invariant:
        raise StartupError(
            f"--deterministic: executor {name!r} reports a part whose results depend on batching"
        )
    return report


def _build_draft(
    config: Config, files: ModelFiles, info: CheckpointInfo, components: Registry, progress: Progress
) -> tuple[EngineCore, EngineReady]:
    built = build_engine(config, files, info, components, progress)
    return built.core, built.ready


def _make_directory(
    config: Config, planned: PlannedLayout, components: Registry
) -> tuple[KVDirectory | None, tuple[Choice, ...]]:
    """The engine's side of the KV connector that was asked for; each worker makes its own."""
    name = config.cache.kv_connector
    if name is None:
        return None, ()
    if not config.cache.enable_prefix_caching:
        raise UsageError(
            f"--kv-connector {name} goes with prefix caching, and --no-enable-prefix-caching is set"
        )
    spec = KVConnectorSpec(config, planned.layout)
    choice = components.choose("connector", name, spec)
    connector: KVConnector = components.create("connector", choice.name, spec)
    return connector.directory(), (choice,)


def _within_a_step(planned: PlannedLayout, budget: int) -> PlannedLayout:
    """The context of a model without KV: its prompts are computed whole."""
    if budget >= planned.max_model_len:
        return planned
    note = f"context {budget}: prompts are computed whole, within --max-num-batched-tokens"
    return replace(planned, max_model_len=budget, notes=(note,))


def _register_core(components: Registry) -> None:
    if components.find("scheduler", f"{CORE}/{CONTINUOUS}") is None:
        components.add([Entry("scheduler", CONTINUOUS, ContinuousScheduler, CORE)])
