"""StopMatcher: the result depends on the text alone, never on how it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.frontend.stop import StopMatcher

ALPHABET = "abQR\n"
TEXT = st.text(ALPHABET, max_size=30)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


def run(chunks, stops, *, include=False):
    matcher = StopMatcher(stops, include_in_output=include)
    shown = ""
    for chunk in chunks:
        shown += matcher.feed(chunk)
        if matcher.matched is not None:
            return shown, matcher.matched
    return shown + matcher.finish(), None


def oracle(text, stops, *, include=False):
    """The prefix that is the first to end in a stop string; of several the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def cut(text, data):
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


@given(text=TEXT, stops=STOPS, include=st.booleans(), data=st.data())
@settings(max_examples=200)
def test_any_cut_gives_what_the_whole_text_gives(text, stops, include, data):
    expected = oracle(text, stops, include=include)
    assert run(cut(text, data), stops, include=include) == expected
    assert run(list(text), stops, include=include) == expected
    assert run([text], stops, include=include) == expected


@given(text=TEXT, stops=STOPS)
@settings(max_examples=100)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(text, stops):
    matcher = StopMatcher(stops)
    shown = ""
    for index, character in enumerate(text, start=1):
        shown += matcher.feed(character)
        if matcher.matched is not None:
            return
        held = text[len(shown) : index]
        assert held == "" or any(stop.startswith(held) for stop in stops)


# vllm-project/vllm#3574, ggml-org/llama.cpp#9867, vllm-project/vllm#3672
@pytest.mark.parametrize(
    ("chunks", "stops", "include", "expected"),
    [
        pytest.param(["abc", "QR", "S", "TU", "V", "w"], ["QRSTUV"], False, ("abc", "QRSTUV"), id="split"),
        pytest.param(["abc", "QRS", "w"], ["QRSTUV"], False, ("abcQRSw", None), id="only-its-beginning"),
        pytest.param(["Why", "?", "\n"], ["\n\n"], False, ("Why?\n", None), id="held-back-at-the-end"),
        pytest.param(["xx", "yS", "Tz"], ["ST"], False, ("xxy", "ST"), id="within-tokens"),
        pytest.param(["xx", "yS", "Tz"], ["ST"], True, ("xxyST", "ST"), id="included"),
        pytest.param(["abcd"], ["abcd", "bc"], False, ("a", "bc"), id="the-first-to-be-complete"),
        pytest.param(["xabc"], ["bc", "abc"], False, ("x", "abc"), id="the-longest-at-one-place"),
    ],
)
def test_cases(chunks, stops, include, expected):
    assert run(chunks, stops, include=include) == expected


def test_a_stop_string_that_is_complete_too_early_does_not_count():
    matcher = StopMatcher(["END"])
    assert matcher.feed("xEND", armed=False) + matcher.feed("y") == "xENDy"
    assert matcher.feed("zEN", armed=False) + matcher.feed("D!") == "z"
    assert matcher.matched == "END"
