"""Whatever is offloaded, loaded, damaged or forgotten, each request gets what it gets alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import FinishReason, KVLoad, SamplePlan
from llmkit.engine.layout import form_groups, sequence_blocks
from llmkit.testing.kv_model import KVModelExecutor, KVModelSpec, generate
from llmkit_kv_offload.host_memory import HostMemory
from llmkit_kv_offload.offload import HostDirectory
from tests.core.engine.harness import Engine, make_request

MODELS = {
    "full": KVModelSpec(windows=(None, None)),
    "alternating": KVModelSpec(windows=(None, 6, None, 6)),
    "window-1": KVModelSpec(windows=(None, 1)),
    "groups-of-unequal-size": KVModelSpec(windows=(None, 9, 9, 9)),
}
CONTEXT = 32


class WordsAsBytes:
    """The model of integers keeps its KV in numpy; a connector sees it as bytes."""

    def __init__(self, executor: KVModelExecutor) -> None:
        self.slots = [torch.from_numpy(words.view(np.uint8)) for words in executor.slots]


class DamagedMemory(HostMemory):
    """Some of what it keeps goes bad."""

    def __init__(self, *args: Any, seed: int, rate: float) -> None:
        super().__init__(*args)
        self._random, self._rate = random.Random(seed), rate
        self.failures = 0

    def apply(self, transfers: bytes) -> list[str]:
        assert self.places is not None
        for place in list(self._sums):
            if self._random.random() < self._rate:
                self.places[place, 0, self._random.randrange(self.places.shape[2])] ^= 255
        failed = super().apply(transfers)
        self.failures += len(failed)
        return failed


class Recorded(HostDirectory):
    """Remembers who was to load."""

    def __init__(self, num_places: int) -> None:
        super().__init__(num_places)
        self.loaders: list[str] = []

    def plan(self, loads: Sequence[KVLoad], evicted: Sequence[tuple[bytes, int]]) -> bytes:
        self.loaders += [load.request_id for load in loads]
        return super().plan(loads, evicted)


class Offloading:
    """An engine over a model of integers, with host memory for some blocks."""

    def __init__(
        self, model: KVModelSpec, places: int, *, seed: int = 0, rate: float = 0, **limits: Any
    ) -> None:
        self.directory = Recorded(places)
        self.engine = Engine(model, directory=self.directory, max_model_len=CONTEXT, **limits)
        memory = WordsAsBytes(self.engine.executor)
        self.memory = DamagedMemory(memory, places, seed=seed, rate=rate)
        self.engine.executor.mover = self.memory


def check_mix(
    seed: int, spare: int, budget: int, seats: int, in_flight: int, places: int, rate: float, name: str
) -> Offloading:
    source = random.Random(seed)
    model = MODELS[name]
    groups, _ = form_groups(model.layers)
    mix = Offloading(
        model,
        places,
        seed=seed,
        rate=rate,
        num_blocks=1 + sequence_blocks(groups, CONTEXT, budget) + spare,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        in_flight=in_flight,
    )
    engine = mix.engine
    heads = [[source.randrange(97) for _ in range(12)] for _ in range(3)]
    expected: dict[str, list[int]] = {}
    for number in range(14):
        prompt = source.choice(heads)[: source.choice([4, 8, 12])]
        prompt = prompt + [source.randrange(3) for _ in range(source.choice([0, 0, 1, 4]))]
        count = source.randrange(1, 14)
        expected[str(number)] = generate(model, prompt, count)
        engine.add(make_request(str(number), prompt, count))
        for _ in range(source.choice([0, 1, 4, 20])):
            engine.step()
            engine.scheduler.check()
        if source.random() < 0.15:
            engine.take(engine.core.abort([str(source.randrange(number + 1))]))
        if source.random() < 0.05:
            engine.scheduler.reset_prefix_cache()
    engine.run()
    assert engine.core.stats.blocks_held == engine.core.stats.running == engine.core.stats.waiting == 0
    for key, tokens in expected.items():
        if engine.last[key].finish == FinishReason.ABORT:
            assert engine.tokens[key] == tokens[: len(engine.tokens[key])]
        else:
            assert engine.tokens[key] == tokens
    return mix


def test_the_mixes_do_what_they_are_for() -> None:
    mixes = [check_mix(seed, 0, 8, 4, 1 + seed % 2, 40, 0.03, "alternating") for seed in range(24)]
    stats = [mix.engine.core.stats for mix in mixes]
    assert sum(each.offload_hits > 0 for each in stats) >= 20
    assert sum(mix.memory.failures for mix in mixes) >= 10
    assert sum(each.preemptions for each in stats) >= 10
    assert all(each.offload_hits <= each.offload_queries for each in stats)


MIX = {
    "seed": st.integers(0, 10**6),
    "spare": st.integers(0, 12),
    "budget": st.integers(1, 20),
    "seats": st.integers(1, 5),
    "in_flight": st.integers(1, 3),
    "places": st.integers(1, 60),
    "rate": st.sampled_from([0, 0, 0.05, 0.5]),
    "name": st.sampled_from(sorted(MODELS)),
}


@settings(max_examples=40, deadline=None)
@given(**MIX)
def test_any_mix_gives_each_its_solo_tokens(**mix: Any) -> None:
    check_mix(**mix)


@pytest.mark.full
@settings(max_examples=1000, deadline=None)
@given(**MIX)
def test_many_mixes_give_each_its_solo_tokens(**mix: Any) -> None:
    check_mix(**mix)


PROMPT = list(range(1, 17))


def evicting(*, cache_salt: str | None = None, **limits: Any) -> Offloading:
    """One request ran, and others have taken its blocks since."""
    limits = {"max_num_seqs": 1} | limits
    mix = Offloading(MODELS["full"], 64, num_blocks=12, max_num_batched_tokens=32, **limits)
    mix.engine.add(make_request("first", PROMPT, 4, cache_salt=cache_salt))
    mix.engine.run()
    for number in range(3):
        mix.engine.add(make_request(f"other-{number}", [50 + number] * 20, 4))
        mix.engine.run()
    return mix


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_hit_after_eviction_equals_cold(name: str) -> None:
    model = MODELS[name]
    groups, _ = form_groups(model.layers)
    mix = Offloading(
        model, 200, num_blocks=1 + sequence_blocks(groups, CONTEXT, 32), max_num_batched_tokens=32
    )
    cold = generate(model, PROMPT, 8)
    for number in range(4):
        mix.engine.add(make_request(f"a-{number}", PROMPT, 8))
        mix.engine.run()
        for other in range(3):
            mix.engine.add(make_request(f"b-{number}-{other}", [50 + other] * 20, 8))
            mix.engine.run()
    assert all(mix.engine.tokens[f"a-{number}"] == cold for number in range(4))
    assert mix.engine.core.stats.offload_hits > 0


def test_what_came_from_the_host_counts_as_cached_but_not_as_the_pool_s() -> None:
    mix = evicting()
    before = mix.engine.core.stats
    mix.engine.add(make_request("again", PROMPT, 4))
    mix.engine.run()
    after = mix.engine.core.stats
    assert mix.engine.last["again"].cached_tokens == 15
    assert after.offload_hits - before.offload_hits + after.prefix_hits - before.prefix_hits == 15
    assert after.offload_hits > before.offload_hits
    assert after.prompt_tokens - before.prompt_tokens == 1
    assert mix.engine.tokens["again"] == mix.engine.tokens["first"]


def test_another_salt_finds_nothing_there() -> None:
    mix = evicting(cache_salt="mine")
    before = mix.engine.core.stats
    for number, salt in enumerate([None, "theirs"]):
        mix.engine.add(make_request(f"again-{number}", PROMPT, 4, cache_salt=salt))
        mix.engine.run()
        assert mix.engine.last[f"again-{number}"].cached_tokens == 0
    assert mix.engine.core.stats.offload_hits == before.offload_hits
    mix.engine.add(make_request("mine", PROMPT, 4, cache_salt="mine"))
    mix.engine.run()
    assert mix.engine.last["mine"].cached_tokens == 15


def test_a_reset_forgets_the_host_too() -> None:
    mix = evicting()
    assert mix.engine.scheduler.reset_prefix_cache()
    mix.engine.add(make_request("again", PROMPT, 4))
    mix.engine.run()
    assert mix.engine.last["again"].cached_tokens == 0
    assert mix.engine.tokens["again"] == mix.engine.tokens["first"]


def test_damage_costs_time_and_nothing_else() -> None:
    mix = evicting()
    assert mix.memory.places is not None
    mix.memory.places[:] ^= 255
    mix.engine.add(make_request("again", PROMPT, 4))
    mix.engine.run()
    assert mix.memory.failures == 1
    assert mix.engine.tokens["again"] == mix.engine.tokens["first"]
    assert mix.engine.last["again"].cached_tokens < 15, "what was not there is not said to be cached"


def test_a_preempted_request_finds_its_blocks_in_host_memory() -> None:
    """It computes only what was not whole when it was preempted."""
    mix = Offloading(MODELS["full"], 64, num_blocks=12, max_num_seqs=2, max_num_batched_tokens=32)
    engine = mix.engine
    engine.add(make_request("old", [3] * 15, 17), make_request("young", PROMPT[:14], 17))
    engine.run()
    assert engine.core.stats.preemptions > 0
    for name, prompt in (("old", [3] * 15), ("young", PROMPT[:14])):
        assert engine.tokens[name] == generate(MODELS["full"], prompt, 17)
    assert mix.directory.loaders == ["young"]


def test_what_was_loaded_is_the_pool_s_again_once_its_step_is_done() -> None:
    mix = evicting()
    for name in ("again", "once-more"):
        before = mix.engine.core.stats
        mix.engine.add(make_request(name, PROMPT, 4))
        mix.engine.run()
    after = mix.engine.core.stats
    assert after.offload_hits == before.offload_hits
    assert after.prefix_hits - before.prefix_hits == 15


def test_nobody_shares_blocks_whose_loading_may_still_fail() -> None:
    """Two requests start in one step: each loads for itself."""
    mix = evicting(in_flight=2, max_num_seqs=2)
    engine, scheduler = mix.engine, mix.engine.scheduler
    engine.add(make_request("a", PROMPT, 4))
    scheduler.schedule()
    leader = scheduler._requests["a"]
    engine.add(make_request("b", PROMPT, 4))
    follower = scheduler._requests["b"]
    assert leader.num_computed == 16
    assert scheduler.kv.fork(leader, follower) is None
    hit = scheduler.kv.find_prefix(follower)
    assert hit.num_loaded > 0
    loading = {block for table in leader.tables for block in table[leader.num_known_blocks :]}
    assert not loading & {block for table in hit.tables for block in table}


@pytest.mark.parametrize("fate", ["aborted", "preempted"])
def test_a_failed_load_of_a_request_that_left_meanwhile_is_of_no_account(fate: str) -> None:
    mix = evicting(in_flight=2, max_num_seqs=2)
    engine, scheduler = mix.engine, mix.engine.scheduler
    assert mix.memory.places is not None
    mix.memory.places[:] ^= 255
    engine.add(make_request("again", PROMPT, 4))
    plan = scheduler.schedule()
    handle = engine.executor.execute(plan)
    if fate == "aborted":
        engine.take(engine.core.abort(["again"]))
    else:
        scheduler._preempt_victim()
    result = engine.executor.sample(handle, SamplePlan(plan.step)).result()
    assert result.failed_loads == ["again"]
    assert scheduler.update(result) == []
    engine.run()
    assert engine.tokens["again"] == (engine.tokens["first"] if fate == "preempted" else [])


def test_nothing_is_loaded_for_a_request_preempted_in_the_plan_that_started_it() -> None:
    mix = evicting()
    kv, engine = mix.engine.scheduler.kv, mix.engine
    engine.add(make_request("again", PROMPT, 4))
    request = engine.scheduler._requests["again"]
    before = kv.pool.num_held
    kv.start(request, kv.find_prefix(request))
    kv.release(request)
    kv.end_plan()
    assert mix.directory.loaders == []
    assert kv.pool.num_held == before
