"""OutputPipeline: the same events' fold for every grouping of tokens in steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import Content, Finished, StepOutput, TokenLogprob, Tokens
from llmkit.events import PositionLogprobs, ToolCallClosed
from llmkit.fold import fold
from llmkit.frontend.output import OutputPipeline
from llmkit.types import FinishReason, SamplingParams
from tests.core.frontend.toy_tokenizers import Bytes

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
EOS = 256


def logprob(token_id):
    return PositionLogprobs(TokenLogprob(token_id, -1.0, 1))


def run(ids, *, finish=LENGTH, stop_token=None, steps=None, **params):
    """All events of ids that arrive in groups of ``steps`` tokens, the last with ``finish``."""
    pipeline = OutputPipeline(Bytes(), [120], SamplingParams(**params))
    sizes = steps or [1] * len(ids)
    events, at = [], 0
    for index, size in enumerate(sizes):
        chunk, at = ids[at : at + size], at + size
        last = index == len(sizes) - 1
        output = StepOutput(
            "r",
            chunk,
            logprobs=[logprob(i) for i in chunk] if params.get("logprobs") is not None else None,
            finish=finish if last else None,
            stop_token=stop_token if last else None,
        )
        events += pipeline.feed(output)
        if pipeline.finished:
            break
    return pipeline, events


TEXT = st.text("abST\né😀", max_size=15)


@given(text=TEXT, data=st.data())
@settings(max_examples=150)
def test_grouping_in_steps_never_shows(text, data):
    ids = [*text.encode(), EOS]
    params = {
        "stop": tuple(data.draw(st.lists(st.text("abST\né", min_size=1, max_size=3), max_size=2))),
        "include_stop_str_in_output": data.draw(st.booleans()),
        "min_tokens": data.draw(st.integers(0, 6)),
        "logprobs": data.draw(st.sampled_from([None, 0])),
    }
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {len(ids)})
    steps = [j - i for i, j in zip([0, *cuts], cuts, strict=False)]
    alone, alone_events = run(ids, finish=STOP, **params)
    grouped, grouped_events = run(ids, finish=STOP, steps=steps, **params)
    assert fold(grouped_events) == fold(alone_events)
    assert grouped.num_tokens == alone.num_tokens == len(fold(alone_events).token_ids)


@given(text=TEXT, stop=st.sampled_from([(), ("S",), ("TS", "\n")]))
@settings(max_examples=60)
def test_order_of_events(text, stop):
    _, events = run([*text.encode(), EOS], finish=STOP, stop=stop)
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert all(event.text for event in events if isinstance(event, Content))
    assert all(event.token_ids for event in events if isinstance(event, Tokens))


# vllm-project/vllm#3574, ggml-org/llama.cpp#9867
@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        pytest.param("abcQRSw", "QRSTUV", "abcQRSw", id="a-beginning-that-came-to-nothing"),
        pytest.param("Why?\n", "\n\n", "Why?\n", id="held-back-at-the-end"),
    ],
)
def test_text_held_back_is_shown_when_the_end_has_another_cause(text, stop, shown):
    _, events = run([*text.encode(), EOS], finish=STOP, stop=(stop,))
    choice = fold(events)
    assert choice.text == shown
    assert choice.finish == Finished(STOP)


# vllm-project/vllm#3672
@pytest.mark.parametrize(("include", "shown"), [(False, "xxy"), (True, "xxyST")])
def test_a_stop_string_ends_the_choice_and_asks_for_an_abort(include, shown):
    pipeline, events = run([*b"xxySTz"], stop=("ST",), include_stop_str_in_output=include)
    choice = fold(events)
    assert (choice.text, choice.finish) == (shown, Finished(STOP, "ST"))
    assert choice.token_ids == [*b"xxyST"]
    assert pipeline.abort_needed
    assert pipeline.num_tokens == 5


def test_no_abort_where_the_engine_has_ended_too():
    pipeline, events = run([*b"xST"], stop=("ST",), finish=LENGTH)
    assert fold(events).finish == Finished(STOP, "ST")
    assert not pipeline.abort_needed


@pytest.mark.parametrize(
    ("params", "stop_token", "shown"),
    [
        pytest.param({}, None, "ab", id="end-of-sequence"),
        pytest.param({"skip_special_tokens": False}, None, "ab", id="not-shown-even-if-special-ones-are"),
        pytest.param({"include_stop_str_in_output": True}, None, "ab", id="special-and-skipped"),
        pytest.param(
            {"include_stop_str_in_output": True, "skip_special_tokens": False}, None, "ab</s>", id="asked-for"
        ),
        pytest.param({}, EOS, "ab", id="stop-token-id"),
    ],
)
def test_the_token_that_ends_it_is_counted_but_not_shown(params, stop_token, shown):
    pipeline, events = run([97, 98, EOS], finish=STOP, stop_token=stop_token, **params)
    choice = fold(events)
    assert choice.text == shown
    assert choice.token_ids == [97, 98, EOS]
    assert choice.finish == Finished(STOP, stop_token)
    assert pipeline.num_tokens == 3


def test_an_ordinary_stop_token_is_left_out_of_the_text():
    _, events = run([97, 98, 99], finish=STOP, stop_token=99)
    assert fold(events).text == "ab"
    _, events = run([97, 98, 99], finish=STOP, stop_token=99, include_stop_str_in_output=True)
    assert fold(events).text == "abc"


def test_stop_strings_wait_for_min_tokens():
    _, events = run([*b"a.b.c."], stop=(".",), min_tokens=3)
    assert fold(events).text == "a.b"


def test_half_a_character_at_the_end_is_a_replacement():
    _, events = run([97, 0xE2, 0x82], finish=LENGTH)
    assert fold(events).text == "a\ufffd"


def test_logprobs_stay_with_their_tokens():
    _, events = run([*b"abST!"], stop=("ST",), logprobs=0, steps=[5])
    choice = fold(events)
    assert [position.sampled.token_id for position in choice.logprobs] == choice.token_ids == [*b"abST"]


def test_a_failure_shows_what_was_held_back():
    pipeline = OutputPipeline(Bytes(), [], SamplingParams(stop=("END",)))
    events = pipeline.feed(StepOutput("r", [*b"xEN"])) + pipeline.fail("the engine is gone")
    choice = fold(events)
    assert choice.text == "xEN"
    assert choice.finish == Finished(FinishReason.ERROR, error="the engine is gone")


def test_errors_and_aborts_of_the_engine_pass_through():
    pipeline = OutputPipeline(Bytes(), [], SamplingParams())
    assert pipeline.feed(StepOutput("r", finish=FinishReason.ERROR, error="why")) == [
        Finished(FinishReason.ERROR, error="why")
    ]
    pipeline = OutputPipeline(Bytes(), [], SamplingParams())
    assert pipeline.feed(StepOutput("r", finish=FinishReason.ABORT)) == [Finished(FinishReason.ABORT)]


def test_an_event_that_no_stage_gives_is_not_lost_in_silence():
    with pytest.raises(TypeError, match="ToolCallClosed"):
        fold([ToolCallClosed()])
