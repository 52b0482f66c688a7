"""Logprobs of the prompt over a real engine, whatever the prefix cache holds; sources are public reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from llmkit import LLM
from llmkit.contracts import SamplingParams
from llmkit.testing import bytes_tokenizer, tiny

PROMPT = [(7 * i) % 251 for i in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = bytes_tokenizer.write(tmp_path_factory.mktemp("tiny"))
    return tiny.build(path, "LlamaForCausalLM")


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    settings = {"dtype": "float32", "quantization": "torch", "max_model_len": 128, "block_size": 16}
    with LLM(str(model), **settings, max_num_batched_tokens=24) as llm:
        yield llm


# Source: vllm-project/vllm#8268 (B107)
def test_they_are_the_same_with_a_warm_cache_and_right(llm: LLM) -> None:
    params = SamplingParams(prompt_logprobs=3, max_tokens=1, temperature=0.0)
    runs = [llm.generate([PROMPT], params)[0] for _ in range(2)]
    assert llm.generate([PROMPT], SamplingParams(max_tokens=1))[0].prompt_logprobs is None
    assert llm._engine is not None
    assert llm._engine.stats.prefix_hits == 32  # the plain request's: those with logprobs compute all
    runs.append(llm.generate([PROMPT], params)[0])
    with torch.no_grad():
        logits = tiny.make("LlamaForCausalLM")(torch.tensor([PROMPT])).logits[0]
    right = torch.log_softmax(logits, -1)
    for run in runs:
        assert run.prompt_logprobs is not None
        assert run.prompt_logprobs == runs[0].prompt_logprobs
        assert run.prompt_logprobs[0] is None
        assert len(run.prompt_logprobs) == len(PROMPT)
        for at, position in enumerate(run.prompt_logprobs[1:], start=1):
            assert position is not None
            assert position.sampled.token_id == PROMPT[at]
            row = right[at - 1]
            assert position.sampled.logprob == pytest.approx(row[PROMPT[at]].item(), abs=1e-3)
            best = row.topk(3)
            assert [token.token_id for token in position.top] == best.indices.tolist()
            assert [token.logprob for token in position.top] == pytest.approx(best.values.tolist(), abs=1e-3)
            assert position.sampled.rank == 1 + int((row > row[PROMPT[at]]).sum())


# Source: vllm-project/vllm#6521 (B118)
def test_a_prompt_is_scored_and_nothing_generated(llm: LLM) -> None:
    generated = llm.generate([PROMPT], SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0.0))[0]
    scored = llm.generate([PROMPT], SamplingParams(prompt_logprobs=0, max_tokens=0, n=2))[0]
    assert scored.prompt_logprobs == generated.prompt_logprobs
    assert [choice.token_ids for choice in scored.choices] == [[], []]


def test_choices_share_one_prompt_and_the_best_come_first(llm: LLM) -> None:
    params = SamplingParams(
        n=3, best_of=6, logprobs=0, seed=3, max_tokens=6, prompt_logprobs=0, ignore_eos=True
    )
    output = llm.generate([PROMPT], params)[0]
    means = [sum(p.sampled.logprob for p in choice.logprobs or ()) / 6 for choice in output.choices]
    assert means == sorted(means, reverse=True)
    every = llm.generate([PROMPT], SamplingParams(n=6, logprobs=0, seed=3, max_tokens=6, ignore_eos=True))[0]
    all_means = sorted(sum(p.sampled.logprob for p in c.logprobs or ()) / 6 for c in every.choices)
    assert means == pytest.approx(all_means[:-4:-1])
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(PROMPT)
