"""Output stages between the parsers and the events: what they may do, and what happens if they fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    Finished,
    OutputStage,
    Parsing,
    Reasoning,
    SamplingParams,
    StepOutput,
    Tool,
    ToolCallClosed,
    ToolCallOpened,
    held_back,
)
from llmkit.errors import RequestError
from llmkit.fold import FoldedCall, FoldedChoice, fold
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.parsing import Formats
from llmkit.frontend.stages import Stages
from llmkit.testing.output_stages import Example, OutputStageContract
from llmkit.types import FinishReason
from tests.core.frontend.toy_formats import Brackets, Thoughts
from tests.core.frontend.toy_tokenizers import Bytes

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
EOS = 256


@dataclass(frozen=True)
class Replacing:
    """Puts one word in another's place, in text of every kind."""

    word: str
    by: str
    conceals: bool = False

    def stage(self) -> OutputStage:
        return _Replacing(self)


@dataclass
class _Replacing:
    made: Replacing
    kind: type[Content] | type[Reasoning] | type[ArgumentsDelta] = Content
    held: str = ""

    def feed(self, delta: Delta) -> list[Delta]:
        shown: list[Delta] = []
        if type(delta) is not self.kind:
            shown = self.finish(STOP)
        if isinstance(delta, ToolCallOpened | ToolCallClosed):
            return [*shown, delta]
        self.kind = type(delta)
        text = (self.held + delta.text).replace(self.made.word, self.made.by)
        certain = len(text) - held_back(text, [self.made.word])
        self.held = text[certain:]
        return [*shown, self.kind(text[:certain])] if certain else shown

    def finish(self, reason: FinishReason) -> list[Delta]:
        rest, self.held = self.held, ""
        return [self.kind(rest)] if rest else []


class TestReplacing(OutputStageContract):
    most_held = len("bad")

    def make_stages(self) -> Replacing:
        return Replacing("bad", "***")

    def words(self) -> Sequence[str]:
        return "bad", "ba"

    def examples(self) -> Sequence[Example]:
        def call(text: str) -> list[Delta]:
            return [ToolCallOpened("f"), ArgumentsDelta(text), ToolCallClosed()]

        return [
            Example("text", (Content("a bad ba"),), (Content("a *** ba"),)),
            Example("thought", (Reasoning("ba"), Content("d")), (Reasoning("ba"), Content("d"))),
            Example("call", (Content("ba"), *call('["bad"]')), (Content("ba"), *call('["***"]'))),
        ]


def run(
    text: str,
    stages: Stages,
    *,
    steps: Sequence[int] = (),
    finish: FinishReason = STOP,
    stop: Sequence[str] = (),
) -> tuple[OutputPipeline, FoldedChoice]:
    ids = [*text.encode(), EOS]
    parsers = Formats(Bytes(), Brackets(), Thoughts()).answer(Parsing(tools=(Tool("f"),)))
    pipeline = OutputPipeline(Bytes(), [120], SamplingParams(stop=tuple(stop)), parsers, stages.chain())
    events, at = [], 0
    for size in [*steps, len(ids)]:
        chunk, at = ids[at : at + size], at + size
        events += pipeline.feed(StepOutput("r", chunk, finish=finish if at >= len(ids) else None))
        if pipeline.finished:
            break
    return pipeline, fold(events)


BAD = Stages([("replacing", Replacing("bad", "***"))])


@given(
    st.lists(st.sampled_from(["((", "))", "b", "bad", "ba", "d", "[f ", "]", "ST", "é"]), max_size=9),
    st.lists(st.integers(1, 4), max_size=30),
)
@settings(max_examples=200)
def test_steps_never_show(words: Sequence[str], steps: Sequence[int]) -> None:
    text = "".join(words)
    _, whole = run(text, BAD, stop=("ST",))
    pipeline, cut = run(text, BAD, steps=steps, stop=("ST",))
    assert cut == whole
    assert pipeline.num_tokens == len(whole.token_ids)
    _, plain = run(text, Stages(), stop=("ST",))
    assert whole.text == plain.text.replace("bad", "***") or "[f " in text or "((" in text
    assert (whole.finish, whole.token_ids) == (plain.finish, plain.token_ids)
    assert [call.name for call in whole.calls] == [call.name for call in plain.calls]


def test_each_kind_of_text_goes_through_and_they_are_not_mixed_up() -> None:
    _, choice = run('((bad))ba[f {"a": "bad"}]d', BAD)
    assert (choice.reasoning, choice.text) == ("***", "bad")
    assert choice.calls == (FoldedCall("f", '{"a": "***"}', complete=True),)
    assert choice.finish == Finished(FinishReason.TOOL_CALLS)


def test_each_stage_gets_what_the_one_before_it_gives() -> None:
    one, two = ("one", Replacing("a", "bb")), ("two", Replacing("bbb", "c"))
    assert run("xabx", Stages([one, two]))[1].text == "xcx"
    assert run("xabx", Stages([two, one]))[1].text == "xbbbx"


def test_what_is_held_back_goes_through_the_stages_behind() -> None:
    stages = Stages([("one", Replacing("xyz", "-")), ("two", Replacing("xy", "c"))])
    assert run("axy", stages)[1].text == "ac"


def test_stop_strings_are_found_in_what_the_model_wrote() -> None:
    stages = Stages([("to", Replacing("ST", "-")), ("from", Replacing("a", "b"))])
    pipeline, choice = run("xaST then", stages, stop=("ST",), steps=[1] * 20)
    assert (choice.text, choice.finish) == ("xb", Finished(STOP, "ST"))
    assert pipeline.abort_needed


def test_a_failure_of_the_engine_shows_what_stages_hold_back() -> None:
    pipeline = OutputPipeline(Bytes(), [], SamplingParams(), None, BAD.chain())
    events = pipeline.feed(StepOutput("r", [*b"ba"])) + pipeline.fail("the engine is gone")
    assert (fold(events).text, fold(events).finish.error) == ("ba", "the engine is gone")


# ---- stages that do wrong ----


@dataclass
class Wrong:
    """Gives this, whatever it is told."""

    gives: list[Delta] | None
    at_the_end: list[Delta] = field(default_factory=list)
    conceals = False

    def stage(self) -> OutputStage:
        return self

    def feed(self, delta: Delta) -> list[Delta]:
        if self.gives is None:
            raise ValueError("secret")
        return self.gives

    def finish(self, reason: FinishReason) -> list[Delta]:
        return self.at_the_end


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        pytest.param(Wrong(None), "a", id="it-raises"),
        pytest.param(Wrong([]), "[f 1]", id="a-call-is-lost"),
        pytest.param(Wrong([ToolCallOpened("f")]), "a", id="a-call-is-made"),
        pytest.param(Wrong([ToolCallOpened("g")]), "[f 1]", id="a-call-is-renamed"),
        pytest.param(Wrong([], [ToolCallClosed()]), "a", id="a-call-at-the-end"),
    ],
)
@pytest.mark.parametrize("steps", [(), [1] * 6])
def test_a_stage_that_fails_ends_its_choice_and_shows_nothing(
    stage: Wrong, text: str, steps: Sequence[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    pipeline, choice = run(text, Stages([("wrong", stage)]), steps=steps)
    assert (choice.text, choice.calls) == ("", ())
    assert choice.finish.reason is FinishReason.ERROR
    assert choice.finish.error is not None
    assert choice.finish.error.startswith("output stage 'wrong' failed")
    assert "secret" not in choice.finish.error
    assert pipeline.finished
    assert pipeline.abort_needed == bool(steps and stage.at_the_end == [])


def test_what_a_stage_that_fails_holds_back_is_not_shown_when_the_engine_fails() -> None:
    stages = Stages([("wrong", Wrong([], [ToolCallClosed()]))])
    pipeline = OutputPipeline(Bytes(), [], SamplingParams(), None, stages.chain())
    assert pipeline.feed(StepOutput("r", [*b"a"]))[1:] == []
    assert pipeline.fail("gone") == [Finished(FinishReason.ERROR, error="gone")]


def test_logprobs_would_tell_what_a_concealing_stage_takes_out() -> None:
    stages = Stages([("open", Replacing("a", "b")), ("shut", Replacing("a", "b", conceals=True))])
    with pytest.raises(RequestError, match="output stage 'shut' takes things out") as refused:
        stages.check(SamplingParams(logprobs=0))
    assert refused.value.param == "logprobs"
    stages.check(SamplingParams())
    BAD.check(SamplingParams(logprobs=0))
