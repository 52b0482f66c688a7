"""How requests end, over the real worker and sampler: ends that are masked, and rows that fail."""

from __future__ import annotations

import pytest

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import (
    AddRequest,
    FinishReason,
    RowResult,
    SamplingParams,
    SchedulerSpec,
    StepOutput,
    StepResult,
)
from llmkit.engine.core import EngineCore
from llmkit.engine.layout import KVBudget, plan_layout
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit_executors.uniproc import UniprocExecutor
from tests.core.engine.harness import ROOT, ByOrder, make_request, make_scheduler
from tests.core.worker.toy import toy_spec

PROMPT = [5, 8, 7, 11]


def quiet(phase: str, fraction: float) -> None:
    """A progress nobody watches."""


class ToyEngine:
    """An engine over the toy model and the sampler that serves."""

    def __init__(self) -> None:
        executor = UniprocExecutor(toy_spec())
        report = executor.start(quiet)
        cache = CacheConfig(block_size=8, num_gpu_blocks_override=64)
        scheduler = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)
        budget = KVBudget(report.layers, 0, "none")
        planned = plan_layout(budget, cache, scheduler, model_len=None, max_model_len=64)
        executor.allocate(planned.layout, quiet)
        spec = SchedulerSpec(scheduler, cache, planned.layout, 8, 64, ROOT, ByOrder())
        self.core = EngineCore(ContinuousScheduler(spec), executor)

    def run(self, max_tokens: int = 20, *, eos: tuple[int, ...] = (), **fields: object) -> StepOutput:
        """All that one greedy request gave, as one output."""
        params = SamplingParams(temperature=0, **fields)
        self.core.add(AddRequest("a", list(PROMPT), params, 0, max_tokens, eos))
        tokens: list[int] = []
        while (step := self.core.step()) is not None:
            for output in step.outputs:
                tokens += output.token_ids
                if output.finish is not None:
                    return StepOutput("a", tokens, finish=output.finish, stop_token=output.stop_token)
        raise AssertionError("it never ended")


@pytest.fixture(scope="module")
def engine() -> ToyEngine:
    return ToyEngine()


@pytest.fixture(scope="module")
def free(engine: ToyEngine) -> list[int]:
    """What the model says when nothing ends it; its third token is not among the first two."""
    tokens = engine.run().token_ids
    assert tokens[2] not in tokens[:2]
    return tokens


def test_an_end_ends_where_the_model_says_it(engine: ToyEngine, free: list[int]) -> None:
    output = engine.run(eos=(free[2],))
    assert (output.token_ids, output.finish, output.stop_token) == (free[:3], FinishReason.STOP, None)


def test_min_tokens_masks_stop_token_ids_and_then_lets_them_end_it(
    engine: ToyEngine, free: list[int]
) -> None:
    stop = free[2]
    unmasked = engine.run(stop_token_ids=(stop,))
    assert (unmasked.token_ids, unmasked.stop_token) == (free[:3], stop)
    masked = engine.run(stop_token_ids=(stop,), min_tokens=5)
    assert masked.token_ids[:2] == free[:2]
    assert stop not in masked.token_ids[:5]
    assert len(masked.token_ids) > 5
    assert (masked.finish, masked.stop_token) in {(FinishReason.STOP, stop), (FinishReason.LENGTH, None)}
    assert engine.run(stop_token_ids=(stop,), min_tokens=2).token_ids == free[:3]


def test_ignore_eos_neither_ends_nor_masks_the_end_of_sequence_within_min_tokens(
    engine: ToyEngine, free: list[int]
) -> None:
    output = engine.run(eos=(free[2],), ignore_eos=True, min_tokens=5)
    assert (output.token_ids, output.finish) == (free, FinishReason.LENGTH)


def test_ignore_eos_leaves_stop_token_ids_masked_by_min_tokens(engine: ToyEngine, free: list[int]) -> None:
    output = engine.run(eos=(free[0],), stop_token_ids=(free[2],), ignore_eos=True, min_tokens=4)
    assert output.token_ids[:2] == free[:2]
    assert free[2] not in output.token_ids[:4]


# ---- rows that fail ----


def test_a_row_that_failed_ends_its_request_and_no_other() -> None:
    scheduler = make_scheduler()
    for name in ("good", "bad"):
        scheduler.add(make_request(name, [1, 2, 3]))
    plan = scheduler.schedule()
    rows = [RowResult("good", [7]), RowResult("bad", [], error="the model's logits are not finite")]
    outputs = {output.request_id: output for output in scheduler.update(StepResult(plan.step, rows))}
    assert (outputs["bad"].finish, outputs["bad"].token_ids) == (FinishReason.ERROR, [])
    assert outputs["bad"].error == "the model's logits are not finite"
    assert (outputs["good"].finish, outputs["good"].token_ids) == (None, [7])
    scheduler.check()
    following = scheduler.schedule()
    assert [row.request_id for row in following.rows] == ["good"]
    assert following.gone == ["bad"]


def test_what_a_failed_step_computed_is_not_offered_to_others() -> None:
    scheduler = make_scheduler()
    prompt = list(range(1, 13))
    scheduler.add(make_request("bad", prompt))
    plan = scheduler.schedule()
    scheduler.update(StepResult(plan.step, [RowResult("bad", [], error="not finite")]))
    scheduler.add(make_request("next", prompt))
    assert scheduler.schedule().rows[0].start == 0


def test_results_of_steps_in_flight_for_a_failed_request_are_stale() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16)
    scheduler.add(make_request("bad", range(1, 20)))
    scheduler.add(make_request("good", [1, 2, 3]))
    first, second = scheduler.schedule(), scheduler.schedule()
    sampled = [row.request_id for row in first.rows if row.num_logits]
    scheduler.update(StepResult(first.step, [RowResult(name, [], error="x") for name in sampled]))
    late = [RowResult(row.request_id, [5]) for row in second.rows if row.num_logits]
    outputs = scheduler.update(StepResult(second.step, late))
    assert {output.request_id for output in outputs}.isdisjoint(sampled)
    scheduler.check()
