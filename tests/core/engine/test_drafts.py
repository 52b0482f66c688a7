"""Drafts and prompt logprobs through a whole engine over the model of integers."""

from __future__ import annotations

import random

import pytest

from llmkit.contracts import AddRequest, SamplingParams
from llmkit.testing.kv_model import KVModelSpec, generate, prompt_logprobs

from .harness import Engine, Foresight, make_request

MODEL = KVModelSpec()
LOGPROBS = SamplingParams(prompt_logprobs=0)


def some_requests(count: int, seed: int, **fields: object) -> list[AddRequest]:
    source = random.Random(seed)
    head = [source.randrange(97) for _ in range(16)]
    prompts = [
        [*head[: source.randrange(17)], *source.choices(range(97), k=1 + number)] for number in range(count)
    ]
    return [
        make_request(f"{n}", prompt, source.randrange(12, 34), **fields) for n, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_drafts_change_no_token(seed: int) -> None:
    drafter = Foresight(MODEL)
    engine = Engine(MODEL, num_blocks=28, max_model_len=60, drafter=drafter)
    requests = some_requests(12, seed)
    engine.add(*requests)
    engine.run()
    for request in requests:
        assert engine.tokens[request.request_id] == generate(MODEL, request.prompt_ids, request.max_tokens)
    stats = engine.core.stats
    assert stats.draft_tokens > stats.accepted_tokens > 0
    assert set(drafter.forgotten) == {request.request_id for request in requests}
    assert stats.blocks_held == 0


def test_accepted_drafts_save_steps() -> None:
    steps = []
    for drafter in (None, Foresight(MODEL, length=5, wrong=1000)):
        engine = Engine(MODEL, drafter=drafter)
        engine.add(make_request("a", [1, 2, 3], 50))
        engine.run()
        steps.append(engine.steps)
    assert steps[1] * 2 < steps[0]


@pytest.mark.parametrize("seed", range(4))
def test_each_prompt_logprob_comes_once_whatever_is_recomputed(seed: int) -> None:
    engine = Engine(MODEL, num_blocks=30, max_model_len=60, max_num_batched_tokens=7, max_num_seqs=6)
    requests = some_requests(8, seed, params=LOGPROBS) + [
        make_request(f"plain {n}", [n] * 12, 30) for n in range(4)
    ]
    for request in requests:
        engine.add(request)
        engine.step()
    engine.run()
    for request in requests:
        name, prompt = request.request_id, request.prompt_ids
        wanted = [] if name.startswith("plain") else prompt_logprobs(MODEL, prompt)
        assert engine.prompt_logprobs[name] == wanted
        assert engine.tokens[name] == generate(MODEL, prompt, request.max_tokens)
    assert engine.core.stats.preemptions > 0


def test_prompt_logprobs_read_nothing_from_the_cache_but_fill_it() -> None:
    engine = Engine(MODEL)
    prompt = list(range(20))
    engine.add(make_request("first", prompt, 1))
    engine.run()
    for name, params, cached in (("asks", LOGPROBS, 0), ("asks not", SamplingParams(), 19)):
        engine.add(make_request(name, prompt, 1, params=params))
        engine.run()
        assert engine.last[name].cached_tokens == cached
    assert engine.prompt_logprobs["asks"] == prompt_logprobs(MODEL, prompt)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 64])
def test_a_prompt_may_be_all_there_is(length: int) -> None:
    """Of any length up to the context, and without a token of output."""
    engine = Engine(MODEL, num_blocks=64)
    prompt = [n % 97 for n in range(length)]
    engine.add(make_request("a", prompt, 0, params=LOGPROBS), make_request("b", [1, 2], 5))
    engine.run()
    assert engine.prompt_logprobs["a"] == prompt_logprobs(MODEL, prompt)
    assert engine.tokens["a"] == []
    assert engine.last["a"].finish == "length"
    assert len(engine.tokens["b"]) == 5
