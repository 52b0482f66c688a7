"""Tiny models that embed or classify against transformers' own eager forward, packed with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from llmkit.assemble.engine import build_engine
from llmkit.assemble.model import open_model
from llmkit.config import sources
from llmkit.config.flags import needed
from llmkit.engine.core import EngineCore
from llmkit.errors import LlmkitError, UsageError
from llmkit.messages import AddRequest, StepOutput
from llmkit.plugins import load_plugins
from llmkit.pooling import PoolingParams, PoolingSpec
from llmkit.testing import tiny
from llmkit.types import FinishReason, SamplingParams

TOLERANCE = 1e-5
LENGTHS = (40, 7, 25, 1, 30)
_GENERATOR = torch.Generator().manual_seed(1)
TEXTS = [torch.randint(3, tiny.VOCAB_SIZE, (n,), generator=_GENERATOR).tolist() for n in LENGTHS]
ALWAYS = {
    "RobertaModel",
    "ModernBertModel",
    "DistilBertForSequenceClassification",
    "Qwen3ForSequenceClassification",
    "BertForTokenClassification",
}
"""One of each kind; the others take their turn in the longer tier."""
RAW = PoolingParams(normalize=False, activate=False)


@contextmanager
def engine(directory: Path, **flags: Any) -> Iterator[tuple[EngineCore, PoolingSpec]]:
    """An engine in this process for the model in ``directory``."""
    config = sources.load({"model": str(directory), **flags}, {}).config
    plugins = load_plugins(config.plugins, needed(config))
    opened = open_model(config, plugins.registry, lambda phase, fraction: None)
    built = build_engine(config, opened.files, opened.info, plugins.registry, lambda phase, fraction: None)
    assert opened.info.pooling is not None
    try:
        yield built.core, opened.info.pooling
    finally:
        built.core.shutdown()


def add(core: EngineCore, name: str, ids: list[int], params: PoolingParams) -> None:
    silent = SamplingParams(max_tokens=0)
    assert core.add(AddRequest(name, ids, silent, seed=0, max_tokens=0, pooling=params)) == []


def finish(core: EngineCore) -> dict[str, StepOutput]:
    """Run until nothing is left: the last output of each request, which is the only one."""
    ended: dict[str, StepOutput] = {}
    while core.has_work:
        stepped = core.step()
        for output in stepped.outputs if stepped is not None else []:
            assert output.request_id not in ended
            ended[output.request_id] = output
    return ended


def vectors(output: StepOutput) -> Tensor:
    """[rows, width]"""
    assert output.finish is FinishReason.STOP, output
    assert output.pooled is not None
    return torch.from_numpy(np.frombuffer(output.pooled.data, np.float32).copy()).view(
        -1, output.pooled.width
    )


def pooled(core: EngineCore, texts: list[list[int]], params: PoolingParams) -> list[Tensor]:
    """All texts at once."""
    for index, ids in enumerate(texts):
        add(core, str(index), ids, params)
    ended = finish(core)
    return [vectors(ended[str(index)]) for index in range(len(texts))]


def own(model: Any, spec: PoolingSpec, ids: list[int]) -> Tensor:
    """What transformers' model itself gives: [rows, width]."""
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]))
    if spec.head != "none":
        return output.logits.view(-1, output.logits.shape[-1])
    hidden = output.last_hidden_state[0]
    match spec.type:
        case "cls":
            return hidden[:1]
        case "last":
            return hidden[-1:]
        case "mean":
            return hidden.mean(0, keepdim=True)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("bert"), "BertModel")


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.full, id=name) for name in tiny.POOLING],
)
def test_results_equal_transformers_packed_and_alone(architecture: str, tmp_path: Path) -> None:
    """In steps of 64 tokens several texts share; what is left holds no KV."""
    with engine(tiny.build(tmp_path, architecture), max_num_batched_tokens=64, max_model_len=64) as (
        core,
        spec,
    ):
        params = PoolingParams(spec.tasks[0], normalize=False, activate=False, whole=spec.type != "last")
        packed = pooled(core, TEXTS, params)
        assert core.stats.steps < len(TEXTS)
        alone = [pooled(core, [ids], params)[0] for ids in TEXTS]
        stats = core.stats
    model = tiny.make(architecture)
    for ids, one, other in zip(TEXTS, packed, alone, strict=True):
        reference = own(model, spec, ids)
        assert reference.norm() > 0.1
        for result in (one, other):
            assert (result - reference).norm() / reference.norm() < TOLERANCE
    assert (stats.blocks_held, stats.running, stats.waiting) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_other_kinds_of_pooling(kind: str, bert: Path) -> None:
    with engine(bert, pooler_config={"pooling_type": kind.upper(), "normalize": False}) as (core, spec):
        assert (spec.type, spec.normalize) == (kind, False)
        results = pooled(core, TEXTS, RAW)
    for ids, result in zip(TEXTS, results, strict=True):
        assert torch.allclose(result, own(tiny.make("BertModel"), spec, ids), atol=1e-4)


def test_what_requests_ask_of_embeddings(bert: Path) -> None:
    with engine(bert) as (core, _):
        raw, unit, short, tokens = (
            pooled(core, TEXTS[:1], params)[0]
            for params in (
                RAW,
                PoolingParams(),
                PoolingParams(dimensions=5),
                PoolingParams("token_embed", normalize=False),
            )
        )
    assert torch.allclose(unit, raw / raw.norm())
    assert torch.allclose(short, raw[:, :5] / raw[:, :5].norm())
    assert tokens.shape == (LENGTHS[0], 48)
    assert torch.equal(tokens[:1], raw)


def test_activations_follow_the_kind_of_head(tmp_path: Path) -> None:
    for architecture, activation in (
        ("BertForSequenceClassification", torch.sigmoid),
        ("DistilBertForSequenceClassification", lambda logits: logits.softmax(1)),
    ):
        with engine(tiny.build(tmp_path / architecture, architecture)) as (core, _):
            logits, probabilities = (
                pooled(core, TEXTS[:1], PoolingParams("classify", activate=activate))[0]
                for activate in (False, True)
            )
        assert torch.allclose(probabilities, activation(logits))


def test_a_pair_has_token_types(tmp_path: Path) -> None:
    architecture, ids, second = "BertForSequenceClassification", TEXTS[0], 15
    with engine(tiny.build(tmp_path, architecture)) as (core, _):
        params = PoolingParams("classify", activate=False)
        add(core, "other", TEXTS[1], params)
        add(core, "pair", ids, PoolingParams("classify", activate=False, second=second))
        ended = finish(core)
    kinds = torch.tensor([[0] * second + [1] * (len(ids) - second)])
    model = tiny.make(architecture)
    with torch.no_grad():
        reference = model(input_ids=torch.tensor([ids]), token_type_ids=kinds).logits
        plain = model(input_ids=torch.tensor([ids])).logits
    assert torch.allclose(vectors(ended["pair"]), reference, atol=1e-4)
    assert not torch.allclose(reference, plain, atol=1e-2)
    assert torch.allclose(
        vectors(ended["other"]), own(model, PoolingSpec("cls", "sequence"), TEXTS[1]), atol=1e-4
    )


def test_a_causal_model_embeds_in_pieces_and_from_the_cache(tmp_path: Path) -> None:
    """The same vector whole, in chunks and with a cached prefix; another salt shares nothing."""
    directory = tiny.build(tmp_path, "Qwen3ForCausalLM")
    text = (TEXTS[0] + TEXTS[4]) * 2
    flags = {"runner": "pooling", "max_model_len": 256}
    with engine(directory, **flags) as (core, spec):
        assert (spec.type, spec.normalize) == ("last", True)
        whole, again = (pooled(core, [text], RAW)[0] for _ in range(2))
        assert core.stats.prefix_hits > 100
        mean = pooled(core, [text], PoolingParams("token_embed", normalize=False, whole=True))[0]
        assert core.stats.blocks_held == 0
    with engine(directory, **flags, max_num_batched_tokens=32) as (core, _):
        chunked = pooled(core, [text], RAW)[0]
        assert core.stats.steps >= 5
    model = tiny.make("Qwen3ForCausalLM").model
    reference = own(model, spec, text)
    for result in (whole, again, chunked, mean[-1:]):
        assert torch.allclose(result, reference, atol=1e-4)


def test_aborted_texts_leave_nothing_and_others_go_on(bert: Path) -> None:
    with engine(bert, max_num_batched_tokens=64, max_model_len=64) as (core, spec):
        for index, ids in enumerate(TEXTS):
            add(core, str(index), ids, RAW)
        first = core.step()
        assert first is not None
        aborted = core.abort(["1", "2", "4"])
        ended = finish(core) | {output.request_id: output for output in [*first.outputs, *aborted]}
        assert (core.stats.running, core.stats.waiting, core.stats.blocks_held) == (0, 0, 0)
    assert FinishReason.ABORT in {output.finish for output in ended.values()}
    model = tiny.make("BertModel")
    for name in ("0", "3"):
        assert torch.allclose(vectors(ended[name]), own(model, spec, TEXTS[int(name)]), atol=1e-4)


def test_a_result_that_is_not_finite_fails_alone(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmkit.worker import pooler

    real = pooler.HiddenPooler._state

    def spoilt(self: Any, hidden: Tensor, row: pooler.PooledRow) -> Tensor:
        state = real(self, hidden, row)
        return state * float("nan") if row.request_id == "1" else state

    monkeypatch.setattr(pooler.HiddenPooler, "_state", spoilt)
    with engine(bert) as (core, _):
        for index, ids in enumerate(TEXTS):
            add(core, str(index), ids, RAW)
        ended = finish(core)
    assert ended.pop("1").error == pooler.NOT_FINITE
    assert {output.finish for output in ended.values()} == {FinishReason.STOP}


def test_flags_that_do_not_fit(bert: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="pooling_type is 'max'; it may be CLS, LAST or MEAN"),
        engine(bert, pooler_config={"pooling_type": "MAX"}),
    ):
        pass
    with (
        pytest.raises(UsageError, match="unknown step_tag_id; it knows"),
        engine(bert, pooler_config={"step_tag_id": 3}),
    ):
        pass
    with (
        pytest.raises(LlmkitError, match="as a causal language model transformers builds"),
        engine(bert, runner="generate"),
    ):
        pass
