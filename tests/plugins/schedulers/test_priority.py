"""The policy ``priority``: lower goes first, waiting makes up for it, and who runs makes way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmkit.testing.policies import View
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


@given(views, views, views)
def test_making_way_has_no_circle(a: View, b: View, c: View) -> None:
    policy = Priority(aging_s=60)
    makes_way = [policy.yields(x, [y]) is y for x, y in [(a, b), (b, c), (c, a)]]
    assert not all(makes_way)
