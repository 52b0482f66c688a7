"""The scheduler ``continuous``: the shipped suite, and tables of what it plans."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.contracts import (
    Drafts,
    FinishReason,
    KVCacheSpec,
    PositionLogprobs,
    RowResult,
    SamplingParams,
    Scheduler,
    SchedulerSpec,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.errors import EngineError
from llmkit.testing.policies import SchedulerContract

from .harness import ByOrder, make_request, make_scheduler

FULL = (KVCacheSpec("full", 4, 8, "x"),)


class TestContinuous(SchedulerContract):
    def make_scheduler(self, spec: SchedulerSpec) -> Scheduler:
        return ContinuousScheduler(spec)


def answer(plan: StepPlan, token: int = 9) -> StepResult:
    rows = [RowResult(row.request_id, [token]) for row in plan.rows if row.num_logits]
    return StepResult(plan.step, rows)


def lengths(plan: StepPlan) -> dict[str, int]:
    return {row.request_id: row.num_tokens for row in plan.rows}


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """B125 (ROCm/ATOM#1835): a long prompt of 40 chunks, a short request one chunk later."""
    scheduler = make_scheduler(
        FULL, num_blocks=500, max_num_batched_tokens=16, max_model_len=1000, max_num_seqs=8
    )
    scheduler.add(make_request("decoding", [1], 200))
    scheduler.update(answer(scheduler.schedule()))
    scheduler.add(make_request("long", [2] * 640))
    scheduler.update(answer(scheduler.schedule()))
    scheduler.add(make_request("short", [3] * 16))
    first: dict[str, int] = {}
    for step in range(1, 100):
        plan = scheduler.schedule()
        assert lengths(plan)["decoding"] == 1
        assert plan.rows[0].request_id in ("decoding", "short")
        for output in scheduler.update(answer(plan)):
            first.setdefault(output.request_id, step)
        if "long" in first:
            break
    assert first["short"] <= 4
    assert first["long"] <= 60


def test_short_prompts_do_not_starve_a_long_one() -> None:
    scheduler = make_scheduler(FULL, num_blocks=400, max_num_batched_tokens=16, max_model_len=600)
    scheduler.add(make_request("long", [2] * 160, 1))
    for step in range(1, 100):
        scheduler.add(make_request(f"short-{step}", [step] * 15, 1))
        if any(output.request_id == "long" for output in scheduler.update(answer(scheduler.schedule()))):
            break
    assert step <= 20, "half of each step's budget is the long prompt's"


def test_one_long_prompt_takes_the_whole_budget() -> None:
    scheduler = make_scheduler(FULL, max_num_batched_tokens=16)
    scheduler.add(make_request("long", [2] * 40))
    assert [scheduler.schedule().rows[0].num_tokens for _ in range(3)] == [16, 16, 8]


def test_running_goes_before_waiting_and_decode_comes_first() -> None:
    scheduler = make_scheduler(FULL, max_num_batched_tokens=8, max_num_seqs=3)
    scheduler.add(make_request("a", [1] * 4))
    scheduler.update(answer(scheduler.schedule()))
    for name in ("b", "c", "d"):
        scheduler.add(make_request(name, [ord(name)] * 6))
    plan = scheduler.schedule()
    assert plan.rows[0].request_id == "a"
    assert sum(lengths(plan).values()) == 8
    assert "d" not in lengths(plan), "there are three seats"
    assert scheduler.stats().waiting == 1


def test_more_seats_than_budget_starve_nobody() -> None:
    scheduler = make_scheduler(FULL, max_num_batched_tokens=2, max_num_seqs=8)
    for name in "abcd":
        scheduler.add(make_request(name, [1], 3))
    ended: list[str] = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert sum(lengths(plan).values()) <= 2
        ended += [output.request_id for output in scheduler.update(answer(plan)) if output.finish]
    assert ended == ["a", "b", "c", "d"]


def test_the_worker_is_told_each_token_once() -> None:
    scheduler = make_scheduler(FULL)
    scheduler.add(make_request("a", [1, 2, 3], 4))
    plan = scheduler.schedule()
    assert plan.new[0].token_ids == [1, 2, 3]
    assert plan.rows[0].token_ids == []
    assert plan.new[0].block_tables == [[1]]
    assert plan.rows[0].new_blocks == [[]]
    scheduler.update(answer(plan, 7))
    plan = scheduler.schedule()
    assert (plan.new, plan.rows[0].token_ids, plan.rows[0].new_blocks) == ([], [7], [[]])
    scheduler.update(answer(plan, 8))
    plan = scheduler.schedule()
    assert plan.rows[0].token_ids == [8]
    assert len(plan.rows[0].new_blocks[0]) == 1
    scheduler.update(answer(plan, 8))
    scheduler.update(answer(scheduler.schedule(), 8))
    plan = scheduler.schedule()
    assert (plan.rows, plan.gone) == ([], ["a"])
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("params", "fields", "tokens", "expected"),
    [
        pytest.param({}, {"max_tokens": 3}, [5, 5, 5], (3, "length", None), id="max-tokens"),
        pytest.param({}, {"eos_ids": (2,)}, [5, 2], (2, "stop", None), id="end-of-sequence"),
        pytest.param({}, {"eos_ids": (2, 7)}, [5, 7], (2, "stop", None), id="second-end-of-sequence"),
        pytest.param({"stop_token_ids": (4,)}, {}, [5, 4], (2, "stop", 4), id="stop-token"),
        pytest.param({"stop_token_ids": (2,)}, {"eos_ids": (2,)}, [2], (1, "stop", None), id="both"),
        pytest.param(
            {}, {"max_tokens": 2, "eos_ids": (2,)}, [5, 2], (2, "stop", None), id="end-at-the-limit"
        ),
        pytest.param({"min_tokens": 2}, {"eos_ids": (2,)}, [5, 5, 2], (3, "stop", None), id="min-tokens"),
        pytest.param(
            {"min_tokens": 2, "stop_token_ids": (4,)},
            {},
            [4, 4, 4],
            (3, "stop", 4),
            id="masked-ends-count-not",
        ),
        pytest.param(
            {"ignore_eos": True, "stop_token_ids": (4,)},
            {"eos_ids": (2,)},
            [2, 4],
            (2, "stop", 4),
            id="ignore-eos-heeds-stop-tokens",
        ),
        pytest.param(
            {"ignore_eos": True},
            {"max_tokens": 8, "eos_ids": (2, 7)},
            [5, 5, 7, 5, 2, 7, 7, 7],
            (8, "length", None),
            id="B074-ignore-eos-ignores-every-end",  # vllm-project/vllm#4589
        ),
        pytest.param({}, {"max_tokens": 999}, [5] * 61, (61, "length", None), id="context-is-full"),
    ],
)
def test_ends(
    params: dict[str, Any], fields: dict[str, Any], tokens: list[int], expected: tuple[int, str, int | None]
) -> None:
    scheduler = make_scheduler(FULL, max_model_len=64)
    scheduler.add(
        make_request("a", [1, 2, 3], **{"max_tokens": 20, **fields}, params=SamplingParams(**params))
    )
    got = []
    for token in tokens:
        outputs = scheduler.update(answer(scheduler.schedule(), token))
        got += outputs[0].token_ids
        if outputs[0].finish:
            break
    assert got == tokens
    assert (len(got), outputs[0].finish, outputs[0].stop_token) == expected
    assert scheduler.stats().blocks_held == 0


def test_end_ids_are_masked_by_the_sampler() -> None:
    scheduler = make_scheduler(FULL)
    stop = SamplingParams(stop_token_ids=(4,))
    scheduler.add(make_request("a", [1], params=stop, eos_ids=(2,)))
    ignore = SamplingParams(stop_token_ids=(4,), ignore_eos=True)
    scheduler.add(make_request("b", [1], params=ignore, eos_ids=(2,)))
    assert {row.request_id: row.end_ids for row in scheduler.schedule().new} == {"a": (2, 4), "b": (4,)}


def test_results_of_requests_that_ended_are_dropped() -> None:
    scheduler = make_scheduler(FULL)
    scheduler.add(make_request("a", [1]))
    scheduler.add(make_request("b", [1]))
    plan = scheduler.schedule()
    assert scheduler.abort(["a"])[0].finish == FinishReason.ABORT
    assert [output.request_id for output in scheduler.update(answer(plan))] == ["b"]
    assert scheduler.schedule().gone == ["a"]


def test_a_request_that_never_ran_is_not_told_as_gone() -> None:
    scheduler = make_scheduler(FULL)
    scheduler.add(make_request("a", [1]))
    scheduler.abort(["a"])
    assert not scheduler.has_work


class Always:
    """Proposes the same for everybody."""

    def __init__(self, *tokens: int, forced: int = 0) -> None:
        self.drafts = Drafts(list(tokens), forced)

    def serves(self, request: Any) -> bool:
        return True

    def propose(self, requests: Any) -> list[Drafts]:
        return [self.drafts for _ in requests]

    def forget(self, request_ids: Any) -> None: ...


def test_a_step_may_give_several_tokens() -> None:
    """Tokens after the end are cut, logprobs with them."""
    scheduler = make_scheduler(FULL, drafter=Always(5, 6))
    scheduler.add(make_request("a", [1], 4, params=SamplingParams(stop_token_ids=(6,))))
    scheduler.update(answer(scheduler.schedule()))
    plan = scheduler.schedule()
    row = plan.rows[0]
    assert (row.start, row.num_tokens, row.num_logits, row.token_ids, row.drafts) == (1, 3, 3, [9], [5, 6])
    logprobs = [PositionLogprobs(TokenLogprob(token, -1.0)) for token in (5, 6, 7)]
    output = scheduler.update(StepResult(plan.step, [RowResult("a", [5, 6, 7], logprobs)]))[0]
    assert (output.token_ids, output.finish, output.stop_token) == ([5, 6], FinishReason.STOP, 6)
    assert output.logprobs == logprobs[:2]
    stats = scheduler.stats()
    assert (stats.draft_tokens, stats.accepted_tokens, stats.forced_tokens) == (2, 2, 0)


def test_refused_drafts_are_computed_again() -> None:
    scheduler = make_scheduler(FULL, drafter=Always(5, 6, 7, forced=1))
    scheduler.add(make_request("a", [1], 20))
    scheduler.update(answer(scheduler.schedule()))
    plan = scheduler.schedule()
    assert not scheduler.has_work, "it sits out until its drafts are verified"
    scheduler.update(StepResult(plan.step, [RowResult("a", [5, 8])]))
    row = scheduler.schedule().rows[0]
    assert (row.start, row.token_ids, row.drafts) == (3, [5, 8], [5, 6, 7])
    stats = scheduler.stats()
    assert (stats.draft_tokens, stats.accepted_tokens, stats.forced_tokens) == (2, 0, 1)


def test_drafts_end_where_the_request_does() -> None:
    scheduler = make_scheduler(FULL, drafter=Always(*range(20, 30)))
    scheduler.add(make_request("a", [1], 5))
    scheduler.update(answer(scheduler.schedule()))
    assert scheduler.schedule().rows[0].drafts == [20, 21, 22]


def test_drafts_take_what_is_left_of_a_step_and_half_where_prompts_wait() -> None:
    scheduler = make_scheduler(FULL, max_num_batched_tokens=10, drafter=Always(*range(20, 30)))
    for name in ("a", "b"):
        scheduler.add(make_request(name, [1], 40))
    scheduler.update(answer(scheduler.schedule()))
    plan = scheduler.schedule()
    assert lengths(plan) == {"a": 9, "b": 1}
    assert [row.request_id for row in plan.rows] == ["b", "a"]
    scheduler.update(answer(plan))
    scheduler.add(make_request("c", [3] * 30))
    assert lengths(scheduler.schedule()) == {"a": 5, "b": 1, "c": 4}


def test_drafts_take_no_block_from_the_others() -> None:
    """Seven blocks of four: both hold one that is full, and four are left after each has its next."""
    scheduler = make_scheduler(FULL, num_blocks=9, max_model_len=32, drafter=Always(*range(20, 34)))
    for name in ("a", "b"):
        scheduler.add(make_request(name, [1] * 3, 29))
    scheduler.update(answer(scheduler.schedule()))
    scheduler.update(answer(scheduler.schedule()))
    for _ in range(3):
        scheduler.update(answer(scheduler.schedule()))
    assert scheduler.stats().preemptions == 0
    assert scheduler.stats().blocks_held <= 8


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([], "sampled 0 tokens", id="none"),
        pytest.param([RowResult("a", [1, 2])], "sampled 2 tokens", id="too-many"),
    ],
)
def test_a_step_that_breaks_its_plan_fails(rows: list[RowResult], message: str) -> None:
    scheduler = make_scheduler(FULL)
    scheduler.add(make_request("a", [1]))
    with pytest.raises(EngineError, match=message):
        scheduler.update(StepResult(scheduler.schedule().step, rows))


def test_an_unknown_step_fails() -> None:
    with pytest.raises(EngineError, match="step 5"):
        make_scheduler(FULL).update(StepResult(5, []))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "0 tokens"),
        ([1] * 64, 1, "1 to 63"),
        ([1] * 65, 0, "1 to 64"),
        ([1], 0, "max_tokens is 0"),
        ([1], -1, "max_tokens is -1"),
    ],
    ids=["empty-prompt", "prompt-fills-the-context", "prompt-beyond-it", "nothing-to-generate", "negative"],
)
def test_what_cannot_be_served_is_refused(prompt: list[int], max_tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_scheduler(FULL).add(make_request("a", prompt, max_tokens))


class NoCompany(ByOrder):
    """Admits only into an empty engine."""

    def admit(self, request: Any, running: Any) -> bool:
        return not running


def test_the_policy_admits() -> None:
    scheduler = make_scheduler(FULL, policy=NoCompany())
    scheduler.add(make_request("a", [1], 2))
    scheduler.add(make_request("b", [1], 2))
    order = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert len(plan.rows) <= 1
        order += list(lengths(plan))
        scheduler.update(answer(plan))
    assert order == ["a", "a", "b", "b"]


class ShortestFirst(ByOrder):
    def key(self, request: Any) -> int:
        return len(request.source.prompt_ids)


def test_the_policy_orders_those_who_wait() -> None:
    scheduler = make_scheduler(FULL, max_num_seqs=1, policy=ShortestFirst())
    for name, length in (("long", 9), ("short", 2), ("middle", 5)):
        scheduler.add(make_request(name, [1] * length, 1))
    scheduler.abort(["middle"])
    order = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        order += list(lengths(plan))
        scheduler.update(answer(plan))
    assert order == ["short", "long"]


def test_a_long_queue_of_aborted_requests_is_forgotten() -> None:
    scheduler = make_scheduler(FULL, max_num_seqs=1)
    for number in range(300):
        scheduler.add(make_request(str(number), [1]))
    scheduler.abort([str(number) for number in range(1, 300)])
    assert scheduler.stats().waiting == 1
    assert len(scheduler._waiting._heap) < 300 // 2


def test_a_request_waits_while_those_running_may_need_the_blocks() -> None:
    """Starting it now would mean preempting it at once, and computing its prompt twice."""
    scheduler = make_scheduler(FULL, num_blocks=1 + 8, max_model_len=32)
    scheduler.add(make_request("a", [1] * 16, 8))
    scheduler.update(answer(scheduler.schedule()))
    scheduler.add(make_request("b", [2] * 14, 8))
    while scheduler.has_work:
        scheduler.update(answer(scheduler.schedule()))
    assert scheduler.stats().preemptions == 0
