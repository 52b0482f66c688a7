"""Speculated or not, a request gets the same tokens, logprobs and end: bit for bit, whatever it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from llmkit import LLM, SamplingParams
from llmkit.contracts import StructuredOutput
from llmkit.llm_jobs import Output
from llmkit.testing import bytes_tokenizer, tiny

IDS = {
    "vocab_size": tiny.VOCAB_SIZE,
    "bos_token_id": bytes_tokenizer.BOS_ID,
    "eos_token_id": bytes_tokenizer.EOS_ID,
    "pad_token_id": bytes_tokenizer.EOS_ID,
}
SETTINGS: dict[str, Any] = {
    "deterministic": True,
    "threads": 1,
    "max_model_len": 128,
    "max_num_batched_tokens": 48,
    "num_gpu_blocks_override": 90,
    "num_speculative_tokens": 5,
}
COPY = "abcabdabcabeabcabd"
FEW = tuple(b"abcde")
SCHEMA = '{"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "size": {"enum": [1, 2]}}, \
"required": ["colour", "size"], "additionalProperties": false}'
ASKED: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0),
    "greedy-repeats": SamplingParams(temperature=0, allowed_token_ids=FEW),
    "seeded": SamplingParams(seed=7),
    "seeded-few": SamplingParams(seed=8, allowed_token_ids=FEW[:2]),
    "shaped": SamplingParams(seed=9, temperature=1.2, top_k=30, top_p=0.9, min_p=0.01, logprobs=2),
    "penalised": SamplingParams(
        seed=10,
        temperature=0.7,
        presence_penalty=0.8,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        allowed_token_ids=FEW,
        logprobs=1,
    ),
    "never-twice": SamplingParams(seed=19, frequency_penalty=2.0, allowed_token_ids=tuple(range(97, 103))),
    "stopped": SamplingParams(
        seed=11, stop=("ab", "ba"), allowed_token_ids=FEW[:3], include_stop_str_in_output=True
    ),
    "stop-ids": SamplingParams(seed=12, stop_token_ids=(98,), min_tokens=6, allowed_token_ids=FEW[:3]),
    "biased": SamplingParams(seed=13, logit_bias={97: 6.0, 98: 6.0, 99: 5.0}),
    "bad-words": SamplingParams(seed=14, bad_words=("ab", "c"), allowed_token_ids=FEW),
    "short": SamplingParams(seed=15, max_tokens=2, allowed_token_ids=FEW[:1]),
    "several": SamplingParams(seed=16, n=2, allowed_token_ids=FEW),
    "regex": SamplingParams(seed=17, structured=StructuredOutput("regex", "(ab|cd|xyz){4,9}[0-9]")),
    "json": SamplingParams(seed=18, structured=StructuredOutput("json", SCHEMA)),
    "prompt": SamplingParams(temperature=0, prompt_logprobs=1, logprobs=0),
}
MOST_TOKENS = 56


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model``, and ``draft``: the same with weights a little off."""
    root = tmp_path_factory.mktemp("models")
    for name, noise in (("model", 0.0), ("draft", 0.1)):
        bytes_tokenizer.write(root / name)
        model = tiny.make("LlamaForCausalLM", **IDS)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            for weight in model.parameters():
                weight.add_(noise * weight.std() * torch.randn_like(weight))
        model.save_pretrained(root / name)
    return root


def asked(name: str) -> SamplingParams:
    params = ASKED[name]
    return (
        params if params.max_tokens is not None else msgspec.structs.replace(params, max_tokens=MOST_TOKENS)
    )


@pytest.fixture(scope="module")
def alone(models: Path) -> Iterator[dict[str, Output]]:
    """Each request on its own, nothing speculated."""
    with LLM(str(models / "model"), **SETTINGS) as llm:
        yield {name: llm.generate(COPY, asked(name))[0] for name in ASKED}


@dataclass(frozen=True)
class Ran:
    outputs: dict[str, Output]
    stats: Any


def run(models: Path, **settings: Any) -> Ran:
    """All requests at once."""
    with LLM(str(models / "model"), **SETTINGS | settings) as llm:
        outputs = llm.generate([COPY] * len(ASKED), [asked(name) for name in ASKED])
        assert llm._engine is not None
        return Ran(dict(zip(ASKED, outputs, strict=True)), llm._engine.stats)


SPECULATED = {
    "ngram": {"speculator": "ngram", "prompt_lookup_min": 1},
    "draft": {"speculator": "draft"},
    "ngram-async": {"speculator": "ngram", "prompt_lookup_min": 1, "async_scheduling": True},
    "draft-scarce": {"speculator": "draft", "num_gpu_blocks_override": 9, "max_num_seqs": 6},
}


@pytest.fixture(scope="module", params=SPECULATED)
def ran(request: pytest.FixtureRequest, models: Path) -> Ran:
    settings = dict(SPECULATED[request.param])
    if settings["speculator"] == "draft":
        settings["draft_model"] = str(models / "draft")
    found = run(models, **settings)
    if "scarce" in request.param:
        assert found.stats.preemptions > 0, "blocks were meant to run out"
    return found


def test_every_request_gets_what_it_gets_alone(ran: Ran, alone: dict[str, Output]) -> None:
    for name in ASKED:
        assert ran.outputs[name] == alone[name], name


def test_some_drafts_were_right_and_some_wrong(ran: Ran) -> None:
    stats = ran.stats
    assert stats.draft_tokens > 100
    assert 0.1 * stats.draft_tokens < stats.accepted_tokens < 0.95 * stats.draft_tokens
    assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)
