from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from llmkit.config import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from llmkit.config.machine import Memory
from llmkit.contracts import (
    PLACEHOLDER,
    Choice,
    ExecutorSpec,
    ModelHook,
    NewRow,
    RowPlan,
    SamplePlan,
    SamplingParams,
    StepPlan,
)
from llmkit.errors import EngineError, OutOfMemory, StartupError, UnknownName
from llmkit.registry import Entry, Registry
from llmkit.worker import Worker, limit_spinning
from llmkit.worker.environment import SPIN
from llmkit.worker.memory_budget import kv_budget
from tests.core.worker.toy import (
    HIDDEN,
    NAMES,
    VOCAB,
    ToyBackend,
    ToyLinear,
    ToyModel,
    layout_for,
    registry,
    toy_spec,
)

GREEDY = SamplingParams(temperature=0)


def quiet(phase: str, fraction: float) -> None:
    """A progress nobody watches."""


def ready(spec: ExecutorSpec | None = None, num_blocks: int = 64) -> Worker:
    worker = Worker(spec or toy_spec())
    worker.allocate(layout_for(worker.load(quiet), num_blocks), quiet)
    return worker


def with_parallel(spec: ExecutorSpec, **fields: Any) -> ExecutorSpec:
    return replace(spec, config=replace(spec.config, parallel=ParallelConfig(**fields)))


def with_entry(kind: str, factory: Any) -> Registry:
    made = registry()
    made.add([Entry(kind, "other", factory, "other", priority=5)])
    return made


# ---- what it chooses and reports ----


def test_the_report_says_what_was_chosen_and_how_big_it_is() -> None:
    worker = Worker(toy_spec())
    phases: list[tuple[str, float]] = []
    report = worker.load(lambda phase, fraction: phases.append((phase, fraction)))
    assert [(c.kind, c.name) for c in report.choices] == [
        ("dtype", "float32"),
        ("loader", "toy"),
        ("linear", "toy"),
        ("ops", "torch"),
        ("model", "toy"),
        ("attention", "toy"),
    ]
    assert [spec.kind for spec in report.layers] == ["full", "sliding", "shared", "sliding"]
    assert report.vocab_size == VOCAB
    assert (report.kv_bytes, report.kv_why) == (1 << 20, "--kv-cache-memory-bytes")
    assert report.row_invariant
    loading = [fraction for phase, fraction in phases if phase == "loading weights"]
    assert len(loading) == len(NAMES)
    assert loading == sorted(loading)
    assert loading[-1] == 1.0


def test_threads_are_those_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        worker = Worker(with_parallel(toy_spec(), threads=3))
        assert torch.get_num_threads() == 3
        assert worker.call("describe", []) == {
            "pid": os.getpid(),
            "device": "cpu",
            "dtype": "float32",
            "threads": 3,
        }
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("longest", [2, 3])
def test_the_shortest_contexts_are_warmed_up(longest: int) -> None:
    ready(toy_spec(model=ModelConfig(model="toy", deterministic=True, max_model_len=longest)))


def test_a_context_without_room_for_an_answer_is_refused() -> None:
    with pytest.raises(StartupError, match="--max-model-len: a context of 1 has no room"):
        ready(toy_spec(model=ModelConfig(model="toy", max_model_len=1)))


def test_a_device_that_is_not_here_is_refused_with_the_flag() -> None:
    with pytest.raises(StartupError, match="--device cuda"):
        Worker(with_parallel(toy_spec(), device="cuda"))


def test_an_unknown_attention_backend_is_named() -> None:
    with pytest.raises(UnknownName, match="--attn: no attention backend is called 'fast'"):
        Worker(with_parallel(toy_spec(), attn="fast")).load(quiet)


@pytest.mark.parametrize(("kind", "base"), [("attention", ToyBackend), ("linear", ToyLinear)])
def test_deterministic_refuses_a_part_that_is_not_row_invariant(kind: str, base: Any) -> None:
    careless = type("Careless", (base,), {"row_invariant": False})
    components = with_entry(kind, lambda spec, options: careless(*([spec] if kind == "attention" else [])))
    with pytest.raises(StartupError, match=f"--deterministic: {kind} 'other' is not row-invariant"):
        Worker(toy_spec(components=components)).load(quiet)
    relaxed = toy_spec(model=ModelConfig(model="toy"), components=components)
    assert not Worker(relaxed).load(quiet).row_invariant


# ---- memory ----

GIB = 1 << 30
MIB = 1 << 20


def test_weights_are_what_the_model_counts_whatever_the_process_took_or_freed() -> None:
    class Wasteful(ToyModel):
        def load(self, weights: Any, on_weight: Any) -> None:
            super().load(weights, on_weight)
            self.ballast = torch.ones(64 * MIB // 4)

    def report(cache: CacheConfig) -> Any:
        components = with_entry("model", lambda spec, parts, options: Wasteful(spec, parts))
        return Worker(toy_spec(cache=cache, components=components)).load(quiet)

    assert report(CacheConfig(block_size=8)).weight_bytes == 4 * (VOCAB * HIDDEN + 16 * HIDDEN * HIDDEN)
    assert report(CacheConfig(block_size=8)).kv_bytes == report(CacheConfig(block_size=8)).kv_bytes


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [(10 * GIB, 2 * GIB, 2 * GIB), (2 * GIB, GIB, GIB // 4), (100 * GIB, GIB, 4 * GIB)],
)
def test_kv_gets_a_quarter_of_what_the_weights_leave_but_at_most_four_gib(
    total: int, weights: int, expected: int
) -> None:
    kv_bytes, why = kv_budget(CacheConfig(), Memory(total, "host"), weights)
    assert kv_bytes == expected
    assert why


def test_kv_memory_that_was_asked_for_is_given_or_refused() -> None:
    asked = CacheConfig(kv_cache_memory_bytes=6 * GIB)
    assert kv_budget(asked, Memory(10 * GIB, "host"), GIB)[0] == 6 * GIB
    with pytest.raises(OutOfMemory, match=r"6\.00 GiB is asked for, but of 6\.00 GiB"):
        kv_budget(asked, Memory(6 * GIB, "host"), GIB)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OutOfMemory, match="serve a smaller model"):
        kv_budget(CacheConfig(), Memory(GIB, "/sys/fs/cgroup/memory.max"), 2 * GIB)


def test_warming_up_leaves_the_pool_untouched() -> None:
    made: list[ToyBackend] = []

    def make(spec: Any, options: Any) -> ToyBackend:
        made.append(ToyBackend(spec))
        return made[-1]

    ready(toy_spec(components=with_entry("attention", make)))
    assert made[0]._views
    assert not any(view.any() for view in made[0]._views)


# ---- what plugins do to it ----


class Tapped(ToyModel):
    """A toy that notes its taps."""

    def __init__(self, spec: Any, parts: Any) -> None:
        super().__init__(spec, parts)
        self.taps: list[tuple[int, Any]] = []

    def tap(self, layer: int, tap: Any) -> None:
        if layer > 3:
            raise ValueError(f"there is no layer {layer} here")
        self.taps.append((layer, tap))


def prepared(*hooks: Any, model: type[ToyModel] = Tapped) -> Any:
    """The report of a worker whose model these ``prepare_model`` functions were given."""
    components = with_entry("model", lambda spec, parts, options: model(spec, parts))
    named = tuple(ModelHook(f"plugin {number}", hook) for number, hook in enumerate(hooks))
    return Worker(replace(toy_spec(components=components), model_hooks=named)).load(quiet)


def test_the_summary_says_who_touched_the_model_and_why() -> None:
    seen: list[Any] = []

    def touches(draft: Any) -> None:
        assert draft.model._weights  # they are there
        draft.tap(2, seen.append, "to see")
        draft.tap(3, seen.append, "to see more")

    report = prepared(seen.append, touches)
    assert seen[0].spec.rank == 0
    assert seen[0].model.taps == [(2, seen.append), (3, seen.append)]
    assert [c for c in report.choices if c.kind == "prepare_model"] == [
        Choice("prepare_model", "plugin 1", "layer 2: to see; layer 3: to see more")
    ]


@pytest.mark.parametrize(
    ("hook", "model", "message"),
    [
        (lambda draft: draft.refuse("too small"), Tapped, "plugin 'plugin 0' refuses the model: too small"),
        (lambda draft: draft.tap(4, print, ""), Tapped, "'plugin 0' refuses the model: there is no layer 4"),
        (lambda draft: draft.tap(0, print, ""), ToyModel, "'plugin 0' refuses .* has no taps"),
        (lambda draft: 1 / 0, Tapped, "'plugin 0' failed to prepare the model: ZeroDivisionError"),
    ],
)
def test_a_hook_that_refuses_or_fails_ends_the_start(hook: Any, model: Any, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        prepared(hook, model=model)


def test_methods_of_plugins_are_called_by_name_with_msgpack_values() -> None:
    components = registry()
    components.add(
        [
            Entry("worker_method", "sum", lambda worker, options: lambda *n: [worker.rank, sum(n)], "mine"),
            Entry("worker_method", "bad", lambda worker, options: lambda: 1 / 0, "mine"),
            Entry("worker_method", "odd", lambda worker, options: lambda: object(), "mine"),
            Entry("worker_method", "size", lambda worker, options: lambda: worker.model.weight_bytes, "mine"),
        ]
    )
    worker = ready(toy_spec(components=components))
    assert worker.call("sum", (2, 3)) == [0, 5]
    assert worker.call("size", ()) > 0
    with pytest.raises(EngineError, match="worker method 'bad' failed: ZeroDivisionError"):
        worker.call("bad", ())
    with pytest.raises(EngineError, match="worker method 'odd' failed: TypeError"):
        worker.call("odd", ())
    with pytest.raises(EngineError, match=r"'none'; known: bad, describe, odd, size, sleep, .*, sum"):
        worker.call("none", ())


# ---- steps ----


def test_only_requests_that_carry_plugin_data_reach_the_models_context() -> None:
    made: list[ToyModel] = []

    def make(spec: Any, parts: Any, options: Any) -> ToyModel:
        made.append(ToyModel(spec, parts))
        return made[-1]

    worker = ready(toy_spec(components=with_entry("model", make)))
    tables = [[1], [2]]
    new = [
        NewRow("plain", [1, 2], 2, GREEDY, 0, 0, (), tables),
        NewRow("carries", [1, 2, 3], 3, GREEDY, 0, 0, (), [[3], [4]], {"shout": b"!"}),
    ]
    nothing: list[list[int]] = [[], []]
    worker.execute(StepPlan(1, [RowPlan("plain", 0, 2, 1, [], nothing)], new=new))
    assert (made[0].contexts[-1].rows, made[0].contexts[-1].plugin_data) == ({}, {})
    worker.sample(SamplePlan(1))
    rows = [RowPlan("plain", 2, 1, 1, [5], nothing), RowPlan("carries", 0, 3, 1, [], nothing)]
    worker.execute(StepPlan(2, rows))
    assert made[0].contexts[-1].rows == {"carries": (1, 4)}
    assert made[0].contexts[-1].plugin_data == {"carries": {"shout": b"!"}}


def test_a_step_is_sampled_once_and_only_after_it_was_launched() -> None:
    worker = ready()
    with pytest.raises(EngineError, match="step 3 is to be sampled, but it was not launched"):
        worker.sample(SamplePlan(3))
    worker.execute(StepPlan(3, []))
    assert worker.sample(SamplePlan(3)).rows == []
    with pytest.raises(EngineError, match="step 3"):
        worker.sample(SamplePlan(3))


def test_an_unknown_method_names_those_there_are() -> None:
    with pytest.raises(EngineError, match="'reboot'; known: describe"):
        ready().call("reboot", [])


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, logprobs=1)])
def test_logits_that_are_not_finite_fail_their_own_row_alone(params: SamplingParams) -> None:
    class Poisoned(ToyModel):
        def load(self, weights: Any, on_weight: Any) -> None:
            super().load(weights, on_weight)
            self._weights["embed"][5] = math.nan  # whoever says 5 has no finite logits; nobody can sample it

        def logits(self, hidden: Tensor) -> Tensor:
            logits = super().logits(hidden)
            logits[:, 5] = logits[:, 4]
            return logits

    components = with_entry("model", lambda spec, parts, options: Poisoned(spec, parts))
    worker = ready(toy_spec(components=components))
    nothing: list[list[int]] = [[], []]
    prompts = {"first": [1, 2, 3], "bad": [1, 5, 3], "last": [4, 2, 3]}
    new = [
        NewRow(name, ids, 3, params, 0, 0, (), [[2 * i + 1], [2 * i + 2]])
        for i, (name, ids) in enumerate(prompts.items())
    ]
    worker.execute(StepPlan(1, [RowPlan(name, 0, 3, 1, [], nothing) for name in prompts], new=new))
    first, bad, last = worker.sample(SamplePlan(1)).rows
    assert (bad.request_id, bad.token_ids, bad.logprobs) == ("bad", [], None)
    assert "not finite" in (bad.error or "")
    assert (first.error, last.error) == (None, None)
    # a step that was planned before the failure was known harms nobody either
    rows = [
        RowPlan("bad", 3, 1, 1, [PLACEHOLDER], nothing),
        RowPlan("last", 3, 1, 1, last.token_ids, nothing),
    ]
    worker.execute(StepPlan(2, rows, gone=["first"]))
    assert [len(row.token_ids) for row in worker.sample(SamplePlan(2)).rows] == [0, 1]


class Recording(ToyModel):
    """Keeps how many rows of logits it was asked for at once, and the hidden states."""

    def __init__(self, spec: Any, parts: Any) -> None:
        super().__init__(spec, parts)
        self.rows: list[int] = []
        self.hidden = torch.empty(0)

    def forward(self, *arguments: Any) -> Any:
        state = super().forward(*arguments)
        self.hidden = state.hidden.clone()
        return state

    def logits(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return super().logits(hidden)


def test_prompt_logprobs_are_of_the_models_logits_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Recording] = []

    def make(spec: Any, parts: Any, options: Any) -> Recording:
        made.append(Recording(spec, parts))
        return made[-1]

    worker = ready(toy_spec(components=with_entry("model", make)))
    monkeypatch.setattr("llmkit.worker.prompt_logprobs._SLICE", 4 * VOCAB)
    prompt = [5, 9, 60, 2, 2, 17, 33, 8, 1, 90, 4]
    params = SamplingParams(temperature=0, prompt_logprobs=3, logit_bias={4: 50.0})
    new = [NewRow("a", prompt, len(prompt), params, 0, 0, (), [[1, 2], [3, 4]])]
    made[0].rows.clear()
    worker.execute(StepPlan(1, [RowPlan("a", 0, len(prompt), 1, [], [[], []])], new=new))
    (row,) = worker.sample(SamplePlan(1)).rows
    assert made[0].rows == [4, 4, 2, 1]
    assert row.prompt_logprobs is not None
    expected = torch.log_softmax(made[0].logits(made[0].hidden).double(), 1)
    for position, entry in enumerate(row.prompt_logprobs, start=1):
        own = expected[position - 1]
        assert entry.sampled.token_id == prompt[position]
        assert entry.sampled.logprob == pytest.approx(float(own[prompt[position]]), abs=1e-5)
        assert entry.sampled.rank == int((own > own[prompt[position]]).sum()) + 1
        assert [top.token_id for top in entry.top] == own.topk(3).indices.tolist()


def test_prompt_logprobs_that_are_no_numbers_fail_their_row_alone() -> None:
    class Poisoned(ToyModel):
        def load(self, weights: Any, on_weight: Any) -> None:
            super().load(weights, on_weight)
            self._weights["embed"][5] = math.nan

        def logits(self, hidden: Tensor) -> Tensor:
            logits = super().logits(hidden)
            logits[:, 5] = logits[:, 4]
            return logits

    worker = ready(toy_spec(components=with_entry("model", lambda s, parts, o: Poisoned(s, parts))))
    params = SamplingParams(temperature=0, prompt_logprobs=0)
    new = [
        NewRow(name, [1, token, 3], 3, params, 0, 0, (), [[i], [i + 8]])
        for i, (name, token) in enumerate({"bad": 5, "good": 6}.items(), start=1)
    ]
    rows = [RowPlan(name, 0, 2, 0, [], [[], []]) for name in ("bad", "good")]
    worker.execute(StepPlan(1, rows, new=new))
    bad, good = worker.sample(SamplePlan(1)).rows
    assert "not finite" in (bad.error or "")
    assert [len(good.prompt_logprobs or []), good.error] == [2, None]


def test_the_mode_of_logprobs_reaches_the_sampler() -> None:
    """Of the token that a bias makes certain: unlikely in the model's own distribution."""
    logprobs = []
    for mode in ("raw", "processed"):
        worker = ready(toy_spec(model=ModelConfig(model="toy", deterministic=True, logprobs_mode=mode)))
        params = SamplingParams(temperature=0, logprobs=0, logit_bias={4: 90.0})
        new = [NewRow("a", [1, 2], 2, params, 0, 0, (), [[1], [2]])]
        worker.execute(StepPlan(1, [RowPlan("a", 0, 2, 1, [], [[], []])], new=new))
        (row,) = worker.sample(SamplePlan(1)).rows
        assert row.token_ids == [4]
        logprobs += [entry.sampled.logprob for entry in row.logprobs or []]
    assert logprobs[0] < -1
    assert logprobs[1] > -0.01


def test_a_closed_worker_says_so() -> None:
    worker = ready()
    worker.close()
    worker.close()
    with pytest.raises(EngineError, match="closed"):
        worker.execute(StepPlan(1, []))


def test_a_context_longer_than_the_pool_sizes_no_buffers() -> None:
    scheduler = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=16)
    worker = ready(toy_spec(scheduler=scheduler), num_blocks=4)
    tokens = list(range(25))
    new = [NewRow("a", tokens, 25, GREEDY, 0, 0, (), [[1, 2, 3], [1, 2, 3]])]
    with pytest.raises(EngineError, match="a row of 25 tokens; this worker takes 24"):
        worker.execute(StepPlan(1, [RowPlan("a", 0, 16, 0, [], [[], []])], new=new))


# ---- the process's environment ----


def test_idle_threads_are_kept_from_spinning_unless_the_user_said_how_they_wait() -> None:
    environ: dict[str, str] = {}
    limit_spinning(environ)
    assert environ == SPIN
    chosen = {"GOMP_SPINCOUNT": "7"}
    limit_spinning(chosen)
    assert chosen == SPIN | {"GOMP_SPINCOUNT": "7"}
    policy = {"OMP_WAIT_POLICY": "active"}
    limit_spinning(policy)
    assert policy == {"OMP_WAIT_POLICY": "active"}


def test_limit_spinning_is_there_before_torch_is() -> None:
    code = "import sys; from llmkit.worker import limit_spinning; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_default_configuration_needs_no_context_length() -> None:
    spec = toy_spec()
    silent = replace(spec, info=replace_config(spec), config=replace(spec.config, model=Config().model))
    assert Worker(silent).load(quiet).vocab_size == VOCAB


def replace_config(spec: ExecutorSpec) -> Any:
    import msgspec

    return msgspec.structs.replace(spec.info, config={"num_hidden_layers": 4})
