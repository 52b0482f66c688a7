"""The policy ``priority``: lower goes first, waiting makes up for it, and who runs makes way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmkit.contracts import AddRequest, SamplingParams
from llmkit.engine.core import EngineCore
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.testing.kv_model import KVModelExecutor
from llmkit.testing.policies import LIMITS, MODEL, View, check_tokens, scheduler_spec
from llmkit_schedulers.priority import Priority

views = st.builds(
    View,
    request_id=st.just("r"),
    order=st.integers(0, 1000),
    priority=st.integers(-(2**63), 2**63 - 1),
    arrival_s=st.floats(0, 4e9),
)


def test_the_lower_number_goes_first_and_the_higher_gives_way() -> None:
    policy = Priority(aging_s=60)
    urgent, usual = View("urgent", 2, priority=-1, arrival_s=3.0), View("usual", 1, arrival_s=1.0)
    assert policy.key(urgent) < policy.key(usual)
    assert policy.victim([urgent, usual]) == policy.victim([usual, urgent]) == usual
    assert policy.yields(urgent, [usual]) == usual
    assert policy.yields(usual, [urgent]) is None


def test_equals_go_by_arrival_and_do_not_make_way_for_each_other() -> None:
    policy = Priority(aging_s=60)
    first, second = View("first", 1, arrival_s=1.0), View("second", 2, arrival_s=2.0)
    assert policy.key(first) < policy.key(second)
    assert policy.yields(first, [second]) is policy.yields(second, [first]) is None


def test_waiting_makes_up_for_priority() -> None:
    policy = Priority(aging_s=60)
    old = View("old", 1, priority=2, arrival_s=1000.0)
    assert policy.key(View("new", 2, arrival_s=1119.0)) < policy.key(old)
    late = View("late", 3, arrival_s=1121.0)
    assert policy.key(old) < policy.key(late)
    assert policy.yields(late, [old]) is None, "it has waited for its turn"


def test_a_lesser_one_makes_way_though_an_equal_came_last() -> None:
    policy = Priority(aging_s=60)
    request = View("request", 2, arrival_s=1001.0)
    equal, lesser = View("equal", 3, arrival_s=1100.0), View("lesser", 1, priority=1, arrival_s=1000.0)
    assert policy.victim([equal, lesser]) == equal
    assert policy.yields(request, [equal, lesser]) == lesser


@given(views, views, views)
def test_making_way_has_no_circle(a: View, b: View, c: View) -> None:
    policy = Priority(aging_s=60)
    makes_way = [policy.yields(x, [y]) is y for x, y in [(a, b), (b, c), (c, a)]]
    assert not all(makes_way)


# ---- with the real scheduler ----


def run(requests: list[tuple[int, AddRequest]], **limits: int) -> tuple[dict[str, int], int]:
    """The step at which each request ended, given that at which it came; and the preemptions."""
    spec = scheduler_spec(Priority(aging_s=1000), **limits)
    scheduler = ContinuousScheduler(spec)
    executor = KVModelExecutor(MODEL)
    executor.allocate(spec.layout, lambda phase, fraction: None)
    core = EngineCore(scheduler, executor)
    tokens: dict[str, list[int]] = {request.request_id: [] for _, request in requests}
    ended: dict[str, int] = {}
    waiting = sorted(requests, key=lambda entry: entry[0])
    for step in range(2000):
        while waiting and waiting[0][0] <= step:
            core.add(waiting.pop(0)[1])
        outputs = core.step()
        scheduler.check()
        for output in outputs.outputs if outputs else ():
            tokens[output.request_id] += output.token_ids
            if output.finish is not None:
                ended[output.request_id] = step
        if not waiting and not core.has_work:
            break
    check_tokens([request for _, request in requests], tokens)
    return ended, scheduler.stats().preemptions


def request(name: str, at: int, priority: int, max_tokens: int = 30) -> tuple[int, AddRequest]:
    prompt = [at % MODEL.vocab_size, *name.encode()[:6]]
    return at, AddRequest(
        request_id=name,
        prompt_ids=[token % MODEL.vocab_size for token in prompt],
        params=SamplingParams(),
        seed=0,
        max_tokens=max_tokens,
        priority=priority,
        arrival_s=float(at),
    )


def test_the_urgent_takes_the_place_of_those_who_run() -> None:
    """All seats are taken by long requests when it comes; it is done long before the first of them."""
    usual = [request(f"usual{number}", 0, 5) for number in range(LIMITS.max_num_seqs)]
    ended, preemptions = run([*usual, request("urgent", 6, 0, max_tokens=4)], spare_blocks=60)
    assert preemptions == 1
    assert ended["urgent"] <= 6 + 4 + 2
    assert all(step > 25 for name, step in ended.items() if name != "urgent")


def test_who_is_as_urgent_as_those_who_run_waits() -> None:
    usual = [request(f"usual{number}", 0, 5) for number in range(LIMITS.max_num_seqs)]
    ended, preemptions = run([*usual, request("same", 6, 5, max_tokens=4)], spare_blocks=60)
    assert preemptions == 0
    assert ended["same"] > min(ended.values())


def test_memory_goes_to_the_urgent() -> None:
    """There are seats, but no blocks: the running make way until it fits, and lose no token."""
    usual = [request(f"usual{number}", 0, 5) for number in range(LIMITS.max_num_seqs - 1)]
    ended, preemptions = run([*usual, request("urgent", 15, 0)], spare_blocks=0)
    assert preemptions >= 1
    assert sorted(ended, key=ended.__getitem__).index("urgent") <= 1
