"""The state machine from reasoning over content to calls, with the formats of a toy model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import Finished, Parsing, StepOutput, StructuredOutput, Tool
from llmkit.errors import RequestError
from llmkit.fold import FoldedCall, FoldedChoice, fold
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.parsing import Formats
from llmkit.types import FinishReason, SamplingParams
from tests.core.frontend.toy_formats import Brackets, Thoughts
from tests.core.frontend.toy_tokenizers import Bytes

STOP, LENGTH, CALLS = FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS
EOS, BEGIN = 256, 257
F = Tool("f")
FORMATS = Formats(Bytes(), Brackets(), Thoughts())


def run(
    ids: list[int],
    *,
    finish: FinishReason = LENGTH,
    steps: list[int] | None = None,
    formats: Formats = FORMATS,
    asked: Parsing | None = None,
    **params: Any,
) -> tuple[OutputPipeline, FoldedChoice]:
    """A choice's output in steps of so many tokens."""
    parsers = formats.answer(asked or Parsing(tools=(F,)))
    pipeline = OutputPipeline(Bytes(), [120], SamplingParams(**params), parsers)
    events, at = [], 0
    sizes = steps or [1] * len(ids)
    for index, size in enumerate(sizes):
        chunk, at = ids[at : at + size], at + size
        last = index == len(sizes) - 1
        events += pipeline.feed(StepOutput("r", chunk, finish=finish if last else None))
        if pipeline.finished:
            break
    return pipeline, fold(events)


def ended(text: str) -> list[int]:
    return [*text.encode(), EOS]


PIECES = st.sampled_from(["((", "))", "(", "a", "S", "ST", "é", "[f 1]", "[f ", "]", "\n"])


@given(text=st.lists(PIECES, max_size=8).map("".join), data=st.data())
@settings(max_examples=200)
def test_steps_never_show(text: str, data: st.DataObject) -> None:
    ids = ended(text)
    params = {
        "stop": data.draw(st.sampled_from([(), ("S",), ("ST", "a\n")])),
        "min_tokens": data.draw(st.integers(0, 4)),
        "asked": data.draw(st.sampled_from([Parsing(tools=(F,)), Parsing(tools=(F,), parallel=False)])),
    }
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {len(ids)})
    steps = [after - before for before, after in zip([0, *cuts], cuts, strict=False)]
    alone, one = run(ids, finish=STOP, **params)
    grouped, other = run(ids, finish=STOP, steps=steps, **params)
    assert one == other
    assert alone.num_tokens == grouped.num_tokens == len(one.token_ids)
    assert alone.num_reasoning_tokens == grouped.num_reasoning_tokens


def test_each_part_in_its_place() -> None:
    _, choice = run(ended('((why))so [f {"a": 1}] then'), finish=STOP)
    assert choice.reasoning == "why"
    assert choice.text == "so  then"
    assert choice.calls == (FoldedCall("f", '{"a": 1}', complete=True),)
    assert choice.finish == Finished(CALLS)


def test_stop_strings_act_on_content_only() -> None:
    """Source: vllm-project/vllm#14550 (B076)"""
    pipeline, choice = run([*b"((ST))[f ST]xSTy"], stop=("ST",))
    assert (choice.reasoning, choice.text) == ("ST", "x")
    assert choice.calls == (FoldedCall("f", "ST", complete=True),)
    assert choice.finish == Finished(CALLS, "ST")
    assert pipeline.abort_needed
    assert choice.token_ids == [*b"((ST))[f ST]xST"]


@pytest.mark.parametrize(
    ("text", "tail", "tokens"),
    [
        ("((abc))d", "", 3),
        ("abc))d", "((", 3),
        ("abc", "((", 3),
        ("a)b)", "((", 4),
        ("((ab))c((d))e", "", 3),
        ("((", "", 0),
        ("abc", "", 0),
        ("((ab[f 1]", "", 2),
    ],
)
def test_tokens_of_reasoning_are_counted_without_its_marks(text: str, tail: str, tokens: int) -> None:
    pipeline, choice = run(
        ended(text), finish=STOP, asked=Parsing(tools=(F,), prompt_tail=tail), stop=("de",)
    )
    assert pipeline.num_reasoning_tokens == tokens == len(choice.reasoning)


def test_no_stop_string_is_found_across_a_call() -> None:
    _, choice = run(ended("xS[f 1]T"), finish=STOP, stop=("ST",))
    assert (choice.text, choice.finish) == ("xST", Finished(CALLS))


def test_what_may_begin_a_stop_string_comes_before_a_call() -> None:
    pipeline = OutputPipeline(
        Bytes(), [120], SamplingParams(stop=("ST",)), FORMATS.answer(Parsing(tools=(F,)))
    )
    events = pipeline.feed(StepOutput("r", [*b"xS[f 1"]))
    assert [type(event).__name__ for event in events] == [
        "Tokens",
        "Content",
        "ToolCallOpened",
        "ArgumentsDelta",
    ]


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        pytest.param("[f 1]", STOP, CALLS, id="a-call"),
        pytest.param("[f 1]", LENGTH, LENGTH, id="length-beats-calls"),
        pytest.param("[f 1", STOP, STOP, id="no-call-was-complete"),
        pytest.param("a", STOP, STOP, id="text"),
        pytest.param("[f 1][f 2", LENGTH, LENGTH, id="cut-in-the-second"),
    ],
)
def test_why_it_ended(text: str, finish: FinishReason, reason: FinishReason) -> None:
    """Source: vllm-project/vllm#53269 (B031)"""
    ids = ended(text) if finish is STOP else [*text.encode()]
    _, choice = run(ids, finish=finish)
    assert choice.finish.reason is reason


def test_one_call_where_they_may_not_be_parallel() -> None:
    pipeline, choice = run([*b"[f 1] [f 2]"], asked=Parsing(tools=(F,), parallel=False))
    assert choice.calls == (FoldedCall("f", "1", complete=True),)
    assert choice.token_ids == [*b"[f 1]"]
    assert choice.finish == Finished(CALLS)
    assert pipeline.abort_needed


def test_a_call_by_name_ends_as_any_answer() -> None:
    _, choice = run([*b"[f 1][f 2]"], asked=Parsing(tools=(F,), calls="named"))
    assert len(choice.calls) == 1
    assert choice.finish == Finished(STOP)


def test_without_tools_a_call_is_content() -> None:
    _, choice = run(ended("((a))[f 1]"), finish=STOP, asked=Parsing())
    assert (choice.reasoning, choice.text, choice.calls) == ("a", "[f 1]", ())
    assert choice.finish == Finished(STOP)


def test_reasoning_that_nobody_asked_to_part_is_content() -> None:
    _, choice = run(ended("((a))b"), finish=STOP, asked=Parsing(reasoning=False))
    assert (choice.reasoning, choice.text) == ("", "((a))b")
    assert Formats(Bytes()).answer(Parsing()) is None
    assert FORMATS.answer(None) is None


def test_a_call_ends_open_reasoning() -> None:
    _, choice = run(ended("((a[f 1]"), finish=STOP)
    assert (choice.reasoning, choice.text) == ("a", "")
    assert choice.calls == (FoldedCall("f", "1", complete=True),)


def test_the_prompts_tail_says_where_it_starts() -> None:
    _, choice = run(ended("a))b"), finish=STOP, asked=Parsing(prompt_tail="\n(("))
    assert (choice.reasoning, choice.text) == ("a", "b")


class Marked(Brackets):
    """Its calls begin with a special token."""

    special_tokens = ("<s>", "</s>", "(")


def test_special_tokens_of_a_parser_are_spelt_out_to_it() -> None:
    formats = Formats(SpecialBytes(), Marked())
    parsers = formats.answer(Parsing(tools=(F,)))
    assert parsers is not None
    assert parsers.spelt_out == {EOS, BEGIN}  # "(" is no special token
    pipeline = OutputPipeline(SpecialBytes(), [120], SamplingParams(), parsers)
    shown = fold(pipeline.feed(StepOutput("r", [BEGIN, 97, EOS], finish=STOP)))
    assert shown.text == "<s>a</s>"
    plain = OutputPipeline(SpecialBytes(), [120], SamplingParams())
    assert fold(plain.feed(StepOutput("r", [BEGIN, 97, EOS], finish=STOP))).text == "a"


class SpecialBytes(Bytes):
    """Reads its special tokens, too."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return {"<s>": [BEGIN], "</s>": [EOS]}.get(text) or super().encode(text)


def test_a_failure_shows_what_is_held_back() -> None:
    pipeline = OutputPipeline(Bytes(), [], SamplingParams(), FORMATS.answer(Parsing(tools=(F,))))
    choice = fold(pipeline.feed(StepOutput("r", [*b"a("])) + pipeline.fail("the engine is gone"))
    assert (choice.text, choice.finish.error) == ("a(", "the engine is gone")


# ---- what is asked for ----


def test_tools_that_nobody_could_parse_are_refused() -> None:
    with pytest.raises(RequestError, match="--tool-call-parser") as refused:
        Formats(Bytes()).answer(Parsing(tools=(F,)))
    assert refused.value.param == "tools"


def test_calls_that_must_come_constrain_the_answer() -> None:
    params = SamplingParams()
    for calls in ("required", "named"):
        parsers = FORMATS.answer(Parsing(tools=(F,), calls=calls))
        assert parsers is not None
        assert parsers.constrained(params).structured == StructuredOutput("choice", '["[f {}]"]')
    free = FORMATS.answer(Parsing(tools=(F,)))
    assert free is not None
    assert free.constrained(params) is params


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (StructuredOutput("json_object"), {"type": "json_schema", "json_schema": {"type": "object"}}),
        (StructuredOutput("json", '{"enum": [1]}'), {"type": "json_schema", "json_schema": {"enum": [1]}}),
        (StructuredOutput("regex", "a+"), {"type": "regex", "pattern": "a+"}),
        (
            StructuredOutput("choice", '["é"]'),
            {"type": "or", "elements": [{"type": "const_string", "value": "é"}]},
        ),
        (StructuredOutput("structural_tag", '{"format": {"type": "any_text"}}'), {"type": "any_text"}),
    ],
)
@pytest.mark.parametrize("calls", ["free", "fitting"])
def test_an_answer_of_a_form_is_that_or_calls(calls: Any, answer: StructuredOutput, part: Any) -> None:
    parsers = FORMATS.answer(Parsing(tools=(F,), calls=calls))
    assert parsers is not None
    wanted = parsers.constrained(SamplingParams(structured=answer)).structured
    assert wanted is not None
    assert wanted.kind == "structural_tag"
    called = {"type": "or", "elements": [{"type": "const_string", "value": "[f {}]"}]}
    assert json.loads(wanted.source)["format"] == {"type": "or", "elements": [called, part]}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (StructuredOutput("grammar", "start: /a/"), "structured: a grammar of this kind cannot stand beside"),
        (
            StructuredOutput("structural_tag", '{"structures": []}'),
            "structured: a structural_tag of this kind",
        ),
        (StructuredOutput("choice", "[]"), "structured: a choice of this kind"),
        (StructuredOutput("json", "{"), "structured: it is no JSON"),
    ],
)
def test_what_has_no_form_beside_calls_is_refused(answer: StructuredOutput, words: str) -> None:
    parsers = FORMATS.answer(Parsing(tools=(F,)))
    assert parsers is not None
    with pytest.raises(RequestError, match=words) as refused:
        parsers.constrained(SamplingParams(structured=answer))
    assert refused.value.param == "structured"


def test_what_cannot_be_constrained_is_refused() -> None:
    fitting = FORMATS.answer(Parsing(tools=(F,), calls="fitting"))
    assert fitting is not None
    with pytest.raises(RequestError, match="tools: a toy calls always") as refused:
        fitting.constrained(SamplingParams())
    assert refused.value.param == "tools"
    required = FORMATS.answer(Parsing(tools=(F,), calls="required"))
    assert required is not None
    with pytest.raises(RequestError, match="give only one of them"):
        required.constrained(SamplingParams(structured=StructuredOutput("json_object")))
