"""Compliance suites for scheduling policies and for whole schedulers.

A plugin's test module subclasses one and says how to make what is tested::

    class TestMine(PolicyContract):
        def make_policy(self):
            return MyPolicy()

They run the real scheduler (or the plugin's) over a model of integers, so a policy that loses, starves
or mixes up requests shows as a missing or wrong token. No torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import (
    AddRequest,
    RequestView,
    SamplingParams,
    Scheduler,
    SchedulerSpec,
    SchedulingPolicy,
)
from llmkit.engine.core import EngineCore
from llmkit.engine.layout import KVBudget, form_groups, plan_layout, sequence_blocks
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.testing.kv_model import KVModelExecutor, KVModelSpec, generate

CONTEXT = 48
MAX_STEPS = 5000
MAX_WAIT = 600
"""Steps."""
MODEL = KVModelSpec()
LIMITS = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=10)


@dataclass(frozen=True, slots=True)
class View:
    """A request as policies see it."""

    request_id: str
    order: int
    priority: int = 0
    arrival_s: float = 0.0
    caller: str = ""
    num_prompt_tokens: int = 8
    max_tokens: int = 16
    num_output_tokens: int = 0
    num_computed_tokens: int = 0


def scheduler_spec(policy: SchedulingPolicy, *, spare_blocks: int = 4) -> SchedulerSpec:
    """For a pool that holds one longest sequence and ``spare_blocks`` more."""
    groups, _ = form_groups(MODEL.layers)
    least = sequence_blocks(groups, CONTEXT, LIMITS.max_num_batched_tokens)
    cache = CacheConfig(block_size=MODEL.block_size, num_gpu_blocks_override=1 + least + spare_blocks)
    planned = plan_layout(
        KVBudget(MODEL.layers, 0, "by the test"), cache, LIMITS, model_len=None, max_model_len=CONTEXT
    )
    return SchedulerSpec(
        scheduler=LIMITS,
        cache=cache,
        layout=planned.layout,
        block_size=MODEL.block_size,
        max_model_len=CONTEXT,
        cache_root=bytes(32),
        policy=policy,
    )


def make_requests(count: int, seed: int = 0) -> list[AddRequest]:
    """Prompts of many lengths, some of which begin alike; priorities from 0 to 2."""
    source = random.Random(seed)
    head = [source.randrange(MODEL.vocab_size) for _ in range(12)]
    requests = []
    for number in range(count):
        tail = source.choices(range(9), k=source.randrange(12))
        prompt = [*head[: source.randrange(13)], number, *tail]
        requests.append(
            AddRequest(
                request_id=f"request-{number}",
                prompt_ids=prompt,
                params=SamplingParams(),
                seed=number,
                max_tokens=source.randrange(1, CONTEXT - len(prompt)),
                priority=source.randrange(3),
                arrival_s=float(number),
            )
        )
    return requests


def simulate(
    scheduler: Scheduler, spec: SchedulerSpec, requests: Sequence[AddRequest]
) -> dict[str, list[int]]:
    """Run the requests, a new one every other step, until all ended; gives each one's tokens.

    :raises AssertionError: requests are left after ``MAX_STEPS`` steps.
    """
    executor = KVModelExecutor(MODEL)
    executor.allocate(spec.layout, lambda phase, fraction: None)
    core = EngineCore(scheduler, executor)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    waiting = list(requests)
    for number in range(MAX_STEPS):
        if waiting and number % 2 == 0:
            core.add(waiting.pop(0))
        step = core.step()
        for output in step.outputs if step else ():
            tokens[output.request_id] += output.token_ids
        if not waiting and not core.has_work:
            return tokens
    raise AssertionError(f"not every request ended within {MAX_STEPS} steps: {core.stats}")


def check_tokens(requests: Sequence[AddRequest], tokens: dict[str, list[int]]) -> None:
    """:raises AssertionError: a request got other tokens than it gets alone, without any cache."""
    for request in requests:
        expected = generate(MODEL, request.prompt_ids, request.max_tokens)
        assert tokens[request.request_id] == expected, request.request_id


class PolicyContract:
    """What every scheduling policy must hold to."""

    bounded_wait = True
    """False for a policy that may let a request wait as long as others come that it prefers."""

    def make_policy(self) -> SchedulingPolicy:
        """A fresh policy, the way its factory makes it."""
        raise NotImplementedError

    def views(self) -> list[View]:
        return [View(f"r{order}", order, priority=order % 3, arrival_s=float(order)) for order in range(6)]

    def test_keys_order_any_two_requests(self) -> None:
        policy = self.make_policy()
        keys = [policy.key(view) for view in self.views()]
        assert all((a < b) or (b < a) or (a == b) for a in keys for b in keys)

    def test_an_idle_engine_admits_whoever_waits(self) -> None:
        policy, views = self.make_policy(), self.views()
        for view in sorted(views, key=policy.key):
            assert policy.admit(view, [])

    def test_the_victim_is_one_of_the_running(self) -> None:
        policy, views = self.make_policy(), self.views()
        for count, view in enumerate(views, start=1):
            policy.key(view)
            assert policy.victim(views[:count]) in views[:count]

    def test_who_makes_way_is_one_of_the_running_and_stands_behind(self) -> None:
        policy, views = self.make_policy(), self.views()
        keys = {view.request_id: policy.key(view) for view in views}
        for waiting in views:
            running = [view for view in views if view is not waiting]
            victim = policy.yields(waiting, running)
            assert victim is None or victim in running
            # Else the two would make way for each other for ever.
            assert victim is None or keys[waiting.request_id] < keys[victim.request_id]

    def test_equal_questions_get_equal_answers(self) -> None:
        first, second, views = self.make_policy(), self.make_policy(), self.views()
        assert [first.key(view) for view in views] == [second.key(view) for view in views]
        assert first.victim(views) == second.victim(views)

    def test_every_request_ends_with_its_own_tokens(self) -> None:
        requests = make_requests(24)
        spec = scheduler_spec(self.make_policy())
        scheduler = ContinuousScheduler(spec)
        check_tokens(requests, simulate(scheduler, spec, requests))
        stats = scheduler.stats()
        assert stats.preemptions > 0, "blocks were meant to run out"
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)

    def test_nobody_waits_for_ever(self) -> None:
        """One request, of the lowest priority, among more others than can be served."""
        if not self.bounded_wait:
            return
        spec = scheduler_spec(self.make_policy())
        scheduler = ContinuousScheduler(spec)
        executor = KVModelExecutor(MODEL)
        executor.allocate(spec.layout, lambda phase, fraction: None)
        core = EngineCore(scheduler, executor)
        patient = _short_request(0, "patient", priority=3)
        for number in range(1, MAX_WAIT):
            core.add(_short_request(number, "crowd") if number != 12 else patient)
            step = core.step()
            outputs = step.outputs if step else []
            if any(output.finish and output.request_id == patient.request_id for output in outputs):
                assert scheduler.stats().waiting > 0, "there was meant to be a crowd"
                return
        raise AssertionError(f"it waited {MAX_WAIT} steps")


class SchedulerContract:
    """What every scheduler must hold to."""

    def make_scheduler(self, spec: SchedulerSpec) -> Scheduler:
        """A fresh scheduler, the way its factory makes it."""
        raise NotImplementedError

    def make_policy(self) -> SchedulingPolicy:
        """The policy it is given."""
        return ByOrder()

    def test_every_request_ends_with_its_own_tokens(self) -> None:
        requests = make_requests(24)
        spec = scheduler_spec(self.make_policy())
        scheduler = self.make_scheduler(spec)
        check_tokens(requests, simulate(scheduler, spec, requests))
        self._check_nothing_is_left(scheduler)

    def test_plans_keep_the_limits(self) -> None:
        scheduler = self.make_scheduler(scheduler_spec(self.make_policy()))
        for request in make_requests(12):
            scheduler.add(request)
        plan = scheduler.schedule()
        names = [row.request_id for row in plan.rows]
        assert names
        assert len(names) == len(set(names)) <= LIMITS.max_num_seqs
        assert sum(row.num_tokens for row in plan.rows) <= LIMITS.max_num_batched_tokens
        assert {row.request_id for row in plan.new} == set(names)

    def test_an_id_is_taken_once(self) -> None:
        scheduler = self.make_scheduler(scheduler_spec(self.make_policy()))
        request = make_requests(1)[0]
        scheduler.add(request)
        try:
            scheduler.add(request)
        except ValueError:
            return
        raise AssertionError("a second request with the same id was taken")

    def test_aborted_requests_end_at_once_and_leave_nothing(self) -> None:
        scheduler = self.make_scheduler(scheduler_spec(self.make_policy()))
        requests = make_requests(8)
        for request in requests:
            scheduler.add(request)
        scheduler.schedule()
        outputs = scheduler.abort(["nobody", *(request.request_id for request in requests)])
        assert {output.request_id for output in outputs} == {request.request_id for request in requests}
        assert all(output.finish == "abort" for output in outputs)
        assert scheduler.abort([requests[0].request_id]) == []
        self._check_nothing_is_left(scheduler)

    @staticmethod
    def _check_nothing_is_left(scheduler: Scheduler) -> None:
        stats = scheduler.stats()
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)
        assert scheduler.reset_prefix_cache()


def _short_request(number: int, caller: str, priority: int = 0) -> AddRequest:
    """One of which a step cannot serve as many as one, if one comes every step."""
    return AddRequest(
        request_id=f"request-{number}",
        prompt_ids=[number % MODEL.vocab_size, *range(7)],
        params=SamplingParams(),
        seed=number,
        max_tokens=4,
        priority=priority,
        arrival_s=float(number),
        caller=caller,
    )


class ByOrder(SchedulingPolicy):
    """First come, first served."""

    def key(self, request: RequestView) -> int:
        return request.order

    def admit(self, request: RequestView, running: Sequence[RequestView]) -> bool:
        return True

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(running, key=lambda request: request.order)
