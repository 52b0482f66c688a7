"""The policy ``fair``: tokens are shared among callers who want them, whatever each one sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from llmkit.contracts import AddRequest, SamplingParams, SchedulingPolicy
from llmkit.engine.core import EngineCore
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.testing.kv_model import KVModelExecutor
from llmkit.testing.policies import MODEL, View, scheduler_spec
from llmkit_schedulers.fair import MAX_IDLE_CALLERS, Fair
from llmkit_schedulers.fcfs import FirstComeFirstServed

Make = Callable[[str], AddRequest]
OFTEN = tuple(range(0, MODEL.vocab_size, 4))
"""End tokens that come after some four tokens."""


def make_request(
    number: int, caller: str, prompt: int, max_tokens: int, ends: tuple[int, ...] = ()
) -> AddRequest:
    return AddRequest(
        request_id=f"r{number}",
        prompt_ids=[number % MODEL.vocab_size, *range(prompt - 1)],
        params=SamplingParams(),
        seed=0,
        max_tokens=max_tokens,
        eos_ids=ends,
        caller=caller,
    )


class Callers:
    """Callers each of whom keeps so many requests open; counts the tokens computed for each."""

    def __init__(self, policy: SchedulingPolicy, spare_blocks: int) -> None:
        spec = scheduler_spec(policy, spare_blocks=spare_blocks)
        self.scheduler = ContinuousScheduler(spec)
        executor = KVModelExecutor(MODEL)
        executor.allocate(spec.layout, lambda phase, fraction: None)
        self.core = EngineCore(self.scheduler, executor)
        self.tokens: Counter[str] = Counter()

    def run(
        self, steps: int, open_requests: dict[str, int], make: dict[str, Callable[[int], AddRequest]]
    ) -> None:
        numbers = count()
        requests: dict[str, AddRequest] = {}

        def send(caller: str) -> None:
            request = make[caller](next(numbers))
            requests[request.request_id] = request
            self.core.add(request)

        for caller, amount in open_requests.items():
            for _ in range(amount):
                send(caller)
        for _ in range(steps):
            step = self.core.step()
            for output in step.outputs if step else ():
                request = requests[output.request_id]
                self.tokens[request.caller] += len(output.token_ids)
                if output.finish is not None:
                    self.tokens[request.caller] += len(request.prompt_ids)
                    send(request.caller)


@pytest.mark.parametrize("spare_blocks", [1, 40], ids=["with-preemption", "with-room"])
def test_who_sends_much_gets_no_more_than_who_sends_little(spare_blocks: int) -> None:
    shares = {}
    for policy in (Fair(), FirstComeFirstServed()):
        callers = Callers(policy, spare_blocks)
        callers.run(
            900,
            {"many": 40, "few": 6},
            {name: lambda n, name=name: make_request(n, name, 8, 36) for name in ("many", "few")},
        )
        assert (callers.scheduler.stats().preemptions > 10) == (spare_blocks == 1)
        shares[type(policy)] = callers.tokens["few"] / callers.tokens.total()
    assert 0.45 < shares[Fair] < 0.55
    assert shares[FirstComeFirstServed] < 0.2, "unfair without it, or this test shows nothing"


def test_tokens_are_shared_and_not_requests() -> None:
    """Both may take 30 tokens an answer; one ends after four, which nobody knows before."""
    callers = Callers(Fair(), 40)
    callers.run(
        1500,
        {"long": 12, "short": 12},
        {
            "long": lambda n: make_request(n, "long", 8, 30),
            "short": lambda n: make_request(n, "short", 8, 30, OFTEN),
        },
    )
    assert 0.75 < callers.tokens["long"] / callers.tokens["short"] < 1.33


def test_turns_not_taken_are_not_saved_up() -> None:
    policy = Fair()
    views = [View(f"busy{order}", order, caller="busy", max_tokens=10) for order in range(50)]
    for view in views:
        policy.key(view)
        policy.admit(view, [])
    late = [View(f"late{order}", order, caller="late") for order in range(50, 60)]
    assert policy.key(views[-1]) < policy.key(late[0])
    more = View("more", 60, caller="busy")
    assert policy.key(late[0]) < policy.key(more) < policy.key(late[1])


def test_a_preempted_request_keeps_its_turn_and_pays_once() -> None:
    policy = Fair()
    first, second = View("a", 0, caller="x"), View("b", 1, caller="x")
    key = policy.key(first)
    assert policy.key(first) == key
    alone = Fair()
    alone.key(first)
    assert policy.key(second) == alone.key(second)


def test_the_requests_of_one_caller_keep_their_order() -> None:
    policy = Fair()
    views = [View(f"r{order}", order, caller="x", max_tokens=1000) for order in range(20)]
    keys = [policy.key(view) for view in views]
    policy.admit(views[0], [])
    policy.ended(views[0])  # it took far fewer tokens than it was charged
    assert policy.key(View("new", 20, caller="x")) > max(keys)


def test_what_is_kept_is_bounded() -> None:
    policy = Fair()
    for order in range(MAX_IDLE_CALLERS + 10):
        view = View(f"r{order}", order, caller=f"caller{order}")
        policy.key(view)
        policy.admit(view, [])
        policy.ended(view)
    assert not policy._accounts
    assert len(policy._idle) == MAX_IDLE_CALLERS
