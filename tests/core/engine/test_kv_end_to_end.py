"""What a request gets does not depend on batching, chunks, the cache, preemption or neighbours."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import FinishReason, SamplingParams
from llmkit.engine.layout import form_groups, sequence_blocks
from llmkit.testing.kv_model import KVModelSpec, generate

from .harness import Engine, Foresight, make_request

MODELS = {
    "full": KVModelSpec(windows=(None, None)),
    "sliding": KVModelSpec(windows=(6, 6)),
    "window-1": KVModelSpec(windows=(None, 1)),
    "window-of-a-block": KVModelSpec(windows=(None, 4, 5)),
    "alternating": KVModelSpec(windows=(None, 6, None, 6)),
    "groups-of-unequal-size": KVModelSpec(windows=(None, 9, 9, 9)),
}
AMPLE: dict[str, Any] = {"num_blocks": 400, "max_num_batched_tokens": 64}


def prompts(seed: int, count: int = 6) -> list[list[int]]:
    """Of all lengths; half of them begin alike."""
    source = random.Random(seed)
    head = [source.randrange(97) for _ in range(12)]
    return [
        head[: source.randrange(13)] * (number % 2)
        + [source.randrange(97) for _ in range(source.randrange(1, 20))]
        for number in range(count)
    ]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(AMPLE, id="batched"),
        pytest.param(AMPLE | {"max_num_batched_tokens": 3}, id="chunks-of-3"),
        pytest.param(AMPLE | {"max_num_seqs": 1}, id="alone"),
        pytest.param(AMPLE | {"in_flight": 2}, id="two-steps-in-flight"),
        pytest.param(AMPLE | {"caching": False}, id="no-cache"),
        pytest.param(AMPLE | {"overlapped": True}, id="overlapped"),
    ],
)
def test_tokens_equal_the_model_without_a_cache(model: KVModelSpec, limits: dict[str, Any]) -> None:
    engine = Engine(model, **limits)
    for round_ in range(2):
        for number, prompt in enumerate(prompts(1)):
            engine.add(make_request(f"{round_}-{number}", prompt, 12))
        engine.run()
    for number, prompt in enumerate(prompts(1)):
        expected = generate(model, prompt, 12)
        assert engine.tokens[f"0-{number}"] == engine.tokens[f"1-{number}"] == expected
    assert (engine.core.stats.prefix_hits > 0) == limits.get("caching", True)
    assert engine.core.stats.blocks_held == 0


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if None in model.windows])
def test_preempted_requests_lose_repeat_and_change_nothing(name: str) -> None:
    """B108 (vllm-project/vllm#16832): blocks for about one and a half of three requests of 64 tokens."""
    model, texts = MODELS[name], prompts(2, 3)
    need = Engine(model, num_blocks=400, max_model_len=96)
    need.add(make_request("alone", max(texts, key=len), 64))
    held = 0
    while need.core.has_work:
        need.step()
        held = max(held, need.core.stats.blocks_held)

    engine = Engine(model, num_blocks=1 + held + held // 2, max_model_len=96, max_num_batched_tokens=8)
    for number, prompt in enumerate(texts):
        engine.add(make_request(str(number), prompt, 64))
    engine.run()
    assert engine.core.stats.preemptions > 0
    for number, prompt in enumerate(texts):
        assert engine.tokens[str(number)] == generate(model, prompt, 64)
        assert engine.last[str(number)].finish == FinishReason.LENGTH


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("length", [4, 8, 16, 17], ids=lambda length: f"prompt-of-{length}")
def test_a_prompt_that_is_all_cached_computes_its_last_token_only(model: KVModelSpec, length: int) -> None:
    engine = Engine(model, **AMPLE)
    prompt = list(range(length))
    engine.add(make_request("cold", prompt, 6))
    engine.run()
    computed = engine.core.stats.prompt_tokens
    engine.add(make_request("warm", prompt, 6))
    engine.run()
    assert engine.tokens["warm"] == engine.tokens["cold"] == generate(model, prompt, 6)
    assert engine.core.stats.prompt_tokens - computed == 1
    assert engine.last["warm"].cached_tokens == length - 1
    assert engine.last["cold"].cached_tokens == 0
    assert engine.executor.copies == (len(engine.scheduler.kv.layout.groups) if length % 4 == 0 else 0)


def test_the_source_of_a_copy_is_not_reused_in_the_same_plan() -> None:
    """Several requests hit the same whole prompt while blocks are scarce."""
    model = KVModelSpec(windows=(None,))
    engine = Engine(model, num_blocks=8, max_model_len=16, max_num_batched_tokens=16)
    prompt = list(range(8))
    engine.add(make_request("cold", prompt, 2))
    engine.run()
    engine.add(*(make_request(f"warm-{i}", prompt, 8) for i in range(4)), make_request("other", [9] * 7, 8))
    engine.run()
    assert all(engine.tokens[f"warm-{i}"] == generate(model, prompt, 8) for i in range(4))
    assert engine.tokens["other"] == generate(model, [9] * 7, 8)
    assert engine.executor.copies > 1


@pytest.mark.parametrize("budget", [1, 2, 7])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_one_sequence_fills_the_context_of_a_pool_made_for_one(model: KVModelSpec, budget: int) -> None:
    groups, _ = form_groups(model.layers)
    engine = Engine(
        model,
        num_blocks=1 + sequence_blocks(groups, 60, budget),
        max_num_batched_tokens=budget,
        max_model_len=60,
    )
    for prompt in ([1], [2] * 16, [2] * 16, [3] * 33):
        engine.add(make_request("a", prompt, 999))
        engine.run()
        assert engine.tokens["a"] == generate(model, prompt, 60 - len(prompt))
        engine.last.clear()
    assert engine.core.stats.preemptions == 0


def mixes(max_examples: int) -> Any:
    return settings(max_examples=max_examples, deadline=None)


def check_mix(
    seed: int,
    spare: int,
    budget: int,
    seats: int,
    in_flight: int,
    name: str,
    *,
    drafts: bool = False,
    overlapped: bool = False,
) -> Engine:
    """Random arrivals, aborts and ends over a small pool: every survivor's tokens are its solo run's."""
    source = random.Random(seed)
    model = MODELS[name]
    groups, _ = form_groups(model.layers)
    engine = Engine(
        model,
        num_blocks=1 + sequence_blocks(groups, 32, budget) + spare,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        in_flight=in_flight,
        max_model_len=32,
        drafter=Foresight(model) if drafts else None,
        overlapped=overlapped,
    )
    expected: dict[str, list[int]] = {}
    for number in range(12):
        prompt = [source.randrange(2)] * source.choice([1, 3, 4, 8, 12])
        prompt += [source.randrange(3) for _ in range(source.choice([0, 0, 1, 4]))]
        count = source.randrange(1, 16)
        ends = (source.randrange(97),)
        alone = generate(model, prompt, count, ends)
        for choice in range(source.choice([1, 1, 1, 3])):
            name = f"{number}.{choice}"
            expected[name] = alone
            leader = f"{number}.0" if choice else None
            engine.add(make_request(name, prompt, count, eos_ids=ends, leader=leader))
        for _ in range(source.randrange(4)):
            engine.step()
        if source.random() < 0.2:
            gone = source.choice(sorted(expected))
            engine.take(engine.core.abort([gone]))
    engine.run()
    assert engine.core.stats.blocks_held == engine.core.stats.running == engine.core.stats.waiting == 0
    for key, tokens in expected.items():
        if engine.last[key].finish == FinishReason.ABORT:
            assert engine.tokens[key] == tokens[: len(engine.tokens[key])]
        else:
            assert engine.tokens[key] == tokens
    return engine


def test_the_mixes_do_what_they_are_for() -> None:
    """Preemption, copies and hits happen often enough for the random mixes to mean something."""
    engines = [
        check_mix(seed, 0, 8, 6, 1 + seed % 2, "alternating", drafts=seed % 3 == 0, overlapped=seed % 2 > 0)
        for seed in range(30)
    ]
    assert sum(engine.core.stats.preemptions for engine in engines) >= 10
    assert sum(engine.core.stats.copied_blocks for engine in engines) >= 20
    drafted = [engine.core.stats for engine in engines if engine.core.stats.draft_tokens]
    assert sum(stats.draft_tokens - stats.accepted_tokens for stats in drafted) >= 20
    assert sum(stats.preemptions > 0 for stats in drafted) >= 2
    assert sum(engine.core.stats.prefix_hits > 0 for engine in engines) >= 20
    assert sum(end.finish == FinishReason.ABORT for engine in engines for end in engine.last.values()) >= 20


MIX = {
    "seed": st.integers(0, 10**6),
    "spare": st.integers(0, 30),
    "budget": st.integers(1, 20),
    "seats": st.integers(1, 6),
    "in_flight": st.integers(1, 3),
    "name": st.sampled_from(sorted(MODELS)),
    "drafts": st.booleans(),
    "overlapped": st.booleans(),
}


@mixes(60)
@given(**MIX)
def test_any_mix_gives_each_its_solo_tokens(**mix: Any) -> None:
    check_mix(**mix)


@pytest.mark.full
@mixes(1000)
@given(**MIX)
def test_many_mixes_give_each_its_solo_tokens(**mix: Any) -> None:
    check_mix(**mix)


def test_stop_token_keeps_neighbours_right() -> None:
    model = KVModelSpec()
    alone = generate(model, [1, 2, 3], 20)
    engine = Engine(model, **AMPLE)
    stop = SamplingParams(stop_token_ids=(alone[4],))
    engine.add(make_request("stops", [1, 2, 3], 20, params=stop), make_request("runs", [1, 2, 3], 20))
    engine.run()
    first = alone.index(alone[4]) + 1
    assert engine.tokens == {"stops": alone[:first], "runs": alone}
    assert engine.last["stops"].finish == FinishReason.STOP
    assert engine.last["stops"].stop_token == alone[4]
