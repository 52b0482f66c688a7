"""How much a front takes on: sequences of all, tokens of each caller."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.errors import OverBudget, QueueFull, RequestError
from llmkit.frontend.room import Room


def test_a_caller_has_so_many_tokens_in_flight_and_no_more():
    room = Room(100, tokens_per_caller=50)
    first = room.enter(2)
    first.charge("a", prompt_tokens=10, tokens_each=15)
    second = room.enter(1)
    with pytest.raises(OverBudget, match="has 40 tokens in flight") as caught:
        second.charge("a", prompt_tokens=1, tokens_each=10)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    second.charge("b", prompt_tokens=1, tokens_each=10)
    first.leave(1)
    third = room.enter(1)
    third.charge("a", prompt_tokens=1, tokens_each=24)
    assert room.tokens_of("a") == 50
    for place in (first, second, third, first):
        place.close()
    assert (room.in_flight, room.tokens_of("a"), room.tokens_of("b")) == (0, 0, 0)


def test_what_no_caller_may_ever_have_is_no_429():
    place = Room(100, tokens_per_caller=50).enter(3)
    with pytest.raises(RequestError) as caught:
        place.charge("a", prompt_tokens=6, tokens_each=15)
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


@given(st.data())
@settings(max_examples=60)
def test_books_balance_whatever_happens(data):
    room, places = Room(8, tokens_per_caller=40), []
    for _ in range(data.draw(st.integers(0, 25))):
        match data.draw(st.sampled_from(["enter", "leave", "close"])):
            case "enter":
                try:
                    place = room.enter(data.draw(st.integers(1, 9)))
                except RequestError:
                    continue
                try:
                    caller = data.draw(st.sampled_from("ab"))
                    place.charge(caller, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)))
                    places.append(place)
                except RequestError:
                    place.close()
            case "leave" if places:
                place = data.draw(st.sampled_from(places))
                place.leave(data.draw(st.integers(0, place._sequences)))
            case "close" if places:
                data.draw(st.sampled_from(places)).close()
        assert 0 <= room.in_flight <= 8
        assert all(0 <= room.tokens_of(caller) <= 40 for caller in "ab")
    for place in places:
        place.close()
    assert (room.in_flight, room._tokens) == (0, {})


def test_a_place_may_change_its_size_before_it_is_charged():
    room = Room(3)
    place = room.enter(3)
    place.resize(1)
    assert room.in_flight == 1
    with pytest.raises(RequestError):
        place.resize(4)
    assert room.in_flight == 0
    room.enter(3)
    with pytest.raises(QueueFull):
        room.enter(1)
