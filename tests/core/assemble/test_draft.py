"""A draft engine writes what its model would sample with the request's own parameters and noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmkit.assemble.draft import DraftedFor, ModelDrafts, open_draft
from llmkit.assemble.engine import build_engine
from llmkit.assemble.model import open_model
from llmkit.config import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from llmkit.contracts import AddRequest, DraftRequest, KVLayout, SamplingParams
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import ModelNotFound
from llmkit.plugins import load_plugins
from llmkit.registry import Registry
from llmkit.testing import tiny

LIMITS = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)
PROMPT = [7, 3, 300, 12, 7, 3, 9, 100, 101, 102, 31, 8, 7, 3, 300, 12, 44, 45]
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(),
    "shaped": SamplingParams(temperature=1.3, top_k=40, top_p=0.9, logit_bias={5: 3.0}),
    "repeated": SamplingParams(repetition_penalty=1.3),
    "allowed": SamplingParams(allowed_token_ids=tuple(range(20, 60))),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("draft") / "model", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def components() -> Registry:
    return load_plugins(Config().plugins).registry


def config(model: Path, **changes: Any) -> Config:
    return Config(
        model=ModelConfig(model=str(model), max_model_len=128),
        cache=CacheConfig(num_gpu_blocks_override=64),
        scheduler=LIMITS,
        parallel=ParallelConfig(threads=1),
        **changes,
    )


def build(*given: Any) -> Any:
    built = build_engine(*given)
    return built.core, built.ready


def opened(model: Path, components: Registry, reference: str | None = None, **changes: Any) -> ModelDrafts:
    fields = {"layout": KVLayout((), 64, 0, 0), "max_model_len": 128, "vocab_size": tiny.VOCAB_SIZE} | changes
    target = DraftedFor(config=config(model), **fields)
    return open_draft(reference or str(model), target, components, build, lambda phase, fraction: None)


@pytest.fixture(scope="module")
def drafts(model: Path, components: Registry) -> Iterator[ModelDrafts]:
    engine = opened(model, components)
    yield engine
    engine.close()
    engine.close()


@pytest.fixture(scope="module")
def alone(model: Path, components: Registry) -> dict[str, list[int]]:
    """What the model itself samples, each request on its own."""
    found = open_model(config(model), components, lambda phase, fraction: None)
    core, ready = build(config(model), found.files, found.info, components, lambda phase, fraction: None)
    client = InprocClient(core, ready)
    tokens = {}
    for number, (name, params) in enumerate(PARAMS.items()):
        client.add(AddRequest(name, PROMPT, params, seed=number, max_tokens=24, choice=number % 2))
        tokens[name] = [token for output in client.outputs() for token in output.token_ids]
    client.close()
    return tokens


def request(
    name: str, alone: dict[str, list[int]], known: int, most: int = 4, **changes: Any
) -> DraftRequest:
    number = list(PARAMS).index(name)
    fields = {"params": PARAMS[name], "seed": number, "choice": number % 2} | changes
    return DraftRequest(name, [*PROMPT, *alone[name][:known]], len(PROMPT), most, **fields)


def test_the_model_itself_drafts_what_it_samples(drafts: ModelDrafts, alone: dict[str, list[int]]) -> None:
    for known in range(0, 20, 3):
        proposed = drafts.propose([request(name, alone, known) for name in PARAMS])
        assert proposed == [alone[name][known : known + 4] for name in PARAMS]


def test_each_gets_as_many_as_it_can_use(drafts: ModelDrafts, alone: dict[str, list[int]]) -> None:
    most = [3, 0, 1, 6, 2]
    proposed = drafts.propose([request(n, alone, 2, m) for n, m in zip(PARAMS, most, strict=True)])
    assert [len(tokens) for tokens in proposed] == most
    assert drafts.propose([]) == []


def test_beyond_its_context_it_has_nothing_to_say(drafts: ModelDrafts, alone: dict[str, list[int]]) -> None:
    long = replace(request("greedy", alone, 0), token_ids=[1] * 128)
    near = replace(request("sampled", alone, 0), token_ids=[1] * 126)
    assert [len(tokens) for tokens in drafts.propose([long, near])] == [0, 2]


def test_kv_is_shared_within_a_scope_alone(
    model: Path, components: Registry, alone: dict[str, list[int]]
) -> None:
    engine = opened(model, components)
    prompt = PROMPT * 2

    def hits(scope: bytes) -> int:
        before = engine.stats.prefix_hits
        engine.propose([replace(request("greedy", alone, 0), token_ids=prompt, scope=scope)])
        return engine.stats.prefix_hits - before

    assert [hits(b"a"), hits(b"a"), hits(b"b"), hits(b"b")] == [0, 32, 0, 32]
    engine.close()


def test_ids_that_its_vocabulary_lacks_are_kept_from_it(
    model: Path, components: Registry, alone: dict[str, list[int]]
) -> None:
    engine = opened(model, components, vocab_size=tiny.VOCAB_SIZE + 64)
    beyond = tiny.VOCAB_SIZE
    unknown = request("greedy", alone, 0)
    unknown = replace(unknown, token_ids=[*unknown.token_ids, beyond])
    biased = request("sampled", alone, 0, params=SamplingParams(logit_bias={beyond: 5.0}))
    allowed = request("shaped", alone, 0, params=SamplingParams(allowed_token_ids=(7, beyond), temperature=0))
    none, some, others = engine.propose([unknown, biased, allowed])
    assert none == []
    assert some == alone["sampled"][:4]
    assert len(others) == 4
    engine.close()


def test_a_model_that_is_not_there_is_named(model: Path, components: Registry) -> None:
    with pytest.raises(ModelNotFound, match="--draft-model nothing/here: "):
        opened(model, components, "nothing/here")
