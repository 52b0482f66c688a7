"""From a configuration to an engine: what is chosen, what is told, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmkit.assemble.engine import build_engine
from llmkit.config import CacheConfig, Config, ModelConfig, ParallelConfig, PluginConfig, SchedulerConfig
from llmkit.contracts import CheckpointInfo, ModelFiles, SchedulerSpec, WorkerReport
from llmkit.engine.client_inproc import InprocClient
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.errors import LlmkitError, OutOfMemory, StartupError, UnknownName, UsageError
from llmkit.plugins import load_plugins
from llmkit.registry import Entry
from llmkit.testing.scripted import ScriptedExecutor

from ..engine.harness import make_request

FILES = ModelFiles("/nowhere", "scripted", "1")
INFO = CheckpointInfo("None", {"max_position_embeddings": 256, "vocab_size": 300})
CONFIG = Config(
    parallel=ParallelConfig(executor="scripted"), plugins=PluginConfig(plugin=("llmkit.testing.scripted",))
)


def build(config: Config = CONFIG, registry: Any = None) -> Any:
    phases: list[str] = []
    components = registry or load_plugins(config.plugins).registry
    built = build_engine(config, FILES, INFO, components, lambda phase, fraction: phases.append(phase))
    assert phases
    return built


def test_a_context_beyond_the_models_is_refused_before_anything_is_made() -> None:
    config = replace(CONFIG, model=ModelConfig(max_model_len=10**9))
    phases: list[str] = []
    registry = load_plugins(config.plugins).registry
    with pytest.raises(UsageError, match="--max-model-len 1000000000: the model was made for 256"):
        build_engine(config, FILES, INFO, registry, lambda phase, fraction: phases.append(phase))
    assert phases == []


def test_an_engine_is_built_and_says_what_was_chosen() -> None:
    built = build()
    assert {(choice.kind, choice.name) for choice in built.ready.choices} == {
        ("executor", "scripted"),
        ("model", "script"),
        ("policy", "fcfs"),
        ("scheduler", "continuous"),
    }
    assert (built.ready.max_model_len, built.ready.vocab_size, built.ready.block_size) == (256, 300, 16)
    assert built.ready.kv_bytes == built.ready.num_blocks * 64
    assert built.ready.notes == ("context 256: the model's own",)
    client = InprocClient(built.core, built.ready)
    client.add(make_request("a", b"hi", 4, eos_ids=(256,)))
    assert [token for output in client.outputs() for token in output.token_ids] == [*b"hi", 256]
    client.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param(
            {"scheduler": SchedulerConfig(scheduler="continous")}, UnknownName, "continuous", id="scheduler"
        ),
        pytest.param({"scheduler": SchedulerConfig(scheduling_policy="x")}, UnknownName, "fcfs", id="policy"),
        pytest.param(
            {"parallel": ParallelConfig(executor="scriptd")}, UnknownName, "scripted", id="executor"
        ),
        pytest.param({"model": ModelConfig(max_model_len=300)}, UsageError, "256", id="beyond-the-model"),
        pytest.param(
            {"scheduler": SchedulerConfig(async_scheduling=True)},
            UsageError,
            "--async-scheduling: executor 'scripted' takes one step at a time",
            id="async-scheduling",
        ),
        pytest.param(
            {"cache": CacheConfig(num_gpu_blocks_override=4)}, OutOfMemory, "needs 256", id="memory"
        ),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[LlmkitError], message: str) -> None:
    with pytest.raises(error, match=message):
        build(replace(CONFIG, **changes))


def test_an_executor_that_was_started_is_shut_down_when_the_rest_fails() -> None:
    stopped: list[float] = []

    class Watched(ScriptedExecutor):
        def shutdown(self, timeout_s: float) -> None:
            stopped.append(timeout_s)

    registry = load_plugins(CONFIG.plugins).registry
    registry.add([Entry("executor", "watched", lambda spec, options: Watched(), "test")])
    config = replace(
        CONFIG, parallel=ParallelConfig(executor="watched"), cache=CacheConfig(num_gpu_blocks_override=2)
    )
    with pytest.raises(OutOfMemory):
        build(config, registry)
    assert stopped == [0]


def test_deterministic_refuses_parts_that_are_not() -> None:
    class Sloppy(ScriptedExecutor):
        def start(self, progress: Any) -> WorkerReport:
            report = super().start(progress)
            return WorkerReport(
                report.choices, report.layers, report.kv_bytes, report.kv_why, 0, report.vocab_size, False
            )

    registry = load_plugins(CONFIG.plugins).registry
    registry.add([Entry("executor", "sloppy", lambda spec, options: Sloppy(), "test")])
    config = replace(
        CONFIG, parallel=ParallelConfig(executor="sloppy"), model=ModelConfig(deterministic=True)
    )
    with pytest.raises(StartupError, match="--deterministic: executor 'sloppy'"):
        build(config, registry)


def test_a_plugin_may_bring_a_whole_scheduler() -> None:
    specs: list[SchedulerSpec] = []

    def factory(spec: SchedulerSpec, options: Any) -> ContinuousScheduler:
        specs.append(spec)
        return ContinuousScheduler(spec)

    registry = load_plugins(CONFIG.plugins).registry
    registry.add([Entry("scheduler", "mine", factory, "test")])
    built = build(replace(CONFIG, scheduler=SchedulerConfig(scheduler="mine")), registry)
    assert ("scheduler", "mine") in {(choice.kind, choice.name) for choice in built.ready.choices}
    assert (specs[0].max_model_len, len(specs[0].layout.groups)) == (256, 2)
    built.core.shutdown()
