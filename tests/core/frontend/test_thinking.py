"""What the engine is told of reasoning, with the formats of a toy model and those that ship."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmkit.contracts import (
    FinishReason,
    Parsing,
    Reasoning,
    RequestContext,
    SamplingParams,
    StructuredOutput,
    Thinking,
    Tool,
)
from llmkit.errors import RequestError
from llmkit.frontend.parsing import Formats, joined, thinking_of
from llmkit.frontend.requests import Attachments, Limits, make_requests
from llmkit.frontend.stop import StopMatcher
from llmkit_reasoning_parsers.formats import FORMATS
from tests.core.frontend.toy_formats import Brackets, Thoughts
from tests.core.frontend.toy_tokenizers import Bytes

TOY = Thinking("either", (41, 41), (b"))",), (b"((",), again=True)
LETTER = Thinking("either", (41,), (b")",), (b"(",), 40, again=True)
STRUCTURED = StructuredOutput("json_object")
changed = msgspec.structs.replace


def told(reasoning: Any, tail: str = "", *, tools: bool = False, **params: Any) -> Thinking | None:
    asked = Parsing(tools=(Tool("f"),) if tools else (), prompt_tail=tail)
    formats = Formats(Bytes(), Brackets(), reasoning, reasoning_name="toy")
    return thinking_of(formats.answer(asked), SamplingParams(**params))


@pytest.mark.parametrize(
    ("reasoning", "tail", "expected"),
    [
        pytest.param(Thoughts(), "((", changed(TOY, first="reasoning"), id="the-prompt-begins-it"),
        pytest.param(Thoughts("(", ")"), "", LETTER, id="the-model-may-begin-it"),
        pytest.param(FORMATS["qwen3"], "<think>\n\n</think>\n\n", None, id="the-prompt-has-ended-it"),
        pytest.param(Thoughts(), "", None, id="no-one-token-begins-it"),
        pytest.param(FORMATS["identity"], "", None, id="nothing-ends-it"),
        pytest.param(None, "((", None, id="there-is-none"),
    ],
)
def test_a_grammar_holds_behind_the_reasoning(reasoning: Any, tail: str, expected: Thinking | None) -> None:
    assert told(reasoning, tail, structured=STRUCTURED) == expected


@pytest.mark.parametrize(("name", "blanks"), [("qwen3", 2), ("mistral", 2), ("gptoss", 0)])
def test_a_grammar_lets_newlines_through_that_are_no_content(name: str, blanks: int) -> None:
    reasoning = FORMATS[name]
    thinking = told(reasoning, f"<|start|>assistant{reasoning.starts[0]}", structured=STRUCTURED)
    assert thinking is not None
    assert thinking.blanks == blanks


@pytest.mark.parametrize(
    ("reasoning", "tail", "expected"),
    [
        pytest.param(Thoughts(), "((", changed(TOY, first="reasoning", budget=7), id="the-prompt-begins-it"),
        pytest.param(Thoughts(), "", changed(TOY, budget=7), id="the-model-may-begin-it"),
        pytest.param(FORMATS["qwen3"], "<think>\n\n</think>\n\n", None, id="the-prompt-has-ended-it"),
    ],
)
def test_a_budget_ends_the_reasoning(reasoning: Any, tail: str, expected: Thinking | None) -> None:
    assert told(reasoning, tail, thinking_token_budget=7) == expected


def test_without_a_grammar_or_a_budget_the_engine_need_not_know() -> None:
    assert told(Thoughts(), "((") is None


def test_a_marker_that_opens_a_call_ends_reasoning_where_the_parser_says_so() -> None:
    toy = told(Thoughts(), "((", tools=True, thinking_token_budget=7)
    assert toy is not None
    assert toy.ends == (b"))", b"[")
    tags = told(FORMATS["qwen3"], "<think>", tools=True, thinking_token_budget=7)
    assert tags is not None
    assert tags.ends == (b"</think>",), "a bracket alone is too common"


@pytest.mark.parametrize("calls", ["fitting", "required", "named"])
def test_where_calls_are_held_to_their_tools_only_the_end_of_reasoning_ends_it(calls: Any) -> None:
    asked = Parsing(tools=(Tool("f"),), calls=calls, prompt_tail="((")
    parsers = Formats(Bytes(), Brackets(), Thoughts()).answer(asked)
    assert parsers is not None
    thinking = parsers.thinking(None, grammar=True)
    assert thinking is not None
    assert thinking.ends == (b"))",)
    machine = parsers.machine(StopMatcher(()))
    deltas = [*machine.feed("a[f 1]", armed=True), *machine.finish("", FinishReason.LENGTH, armed=True)]
    assert joined(deltas) == [Reasoning("a[f 1]")]


def test_a_budget_where_the_reasoning_is_not_known_names_the_flag() -> None:
    for parsers in (None, Formats(Bytes(), Brackets()).answer(Parsing(tools=(Tool("f"),)))):
        with pytest.raises(
            RequestError, match=r"thinking_token_budget is 0; .*--reasoning-parser"
        ) as refused:
            thinking_of(parsers, SamplingParams(thinking_token_budget=0))
        assert (refused.value.param, refused.value.status) == ("thinking_token_budget", 400)


@pytest.mark.parametrize("budget", [-1, 1.5, "7", True])
def test_a_budget_is_a_number_of_tokens(budget: Any) -> None:
    with pytest.raises(RequestError, match="thinking_token_budget") as refused:
        told(Thoughts(), thinking_token_budget=budget)
    assert refused.value.param == "thinking_token_budget"


def test_reasoning_that_cannot_be_ended_has_no_budget() -> None:
    with pytest.raises(RequestError, match="the format toy has nothing that ends reasoning"):
        told(FORMATS["identity"], thinking_token_budget=7)

    class Deaf(Bytes):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [] if text == "))" else super().encode(text)

    formats = Formats(Deaf(), None, Thoughts(), reasoning_name="toy")
    with pytest.raises(RequestError, match=r"ends reasoning with '\)\)', which this model has no tokens for"):
        thinking_of(formats.answer(Parsing()), SamplingParams(thinking_token_budget=7))


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        pytest.param(Limits(99, 258, eos_ids=(41,)), "token 41, .*, ends the answer", id="an-end-token"),
        pytest.param(Limits(99, 41), "token 41, .*, is none of the model's", id="no-row"),
    ],
)
def test_the_end_must_be_writable(limits: Limits, why: str) -> None:
    thinking = told(Thoughts(), thinking_token_budget=7)
    with pytest.raises(RequestError, match=why):
        make_requests([1], SamplingParams(), RequestContext(), limits, Attachments(thinking=thinking))


@pytest.mark.parametrize(
    ("name", "answering"),
    [
        ("qwen3", [b"</think>"]),
        ("granite", [b"Here is my response:", b"Here's my response:", b"</think>"]),
        ("gptoss", [b"<|end|><|start|>assistant<|channel|>final<|message|>"]),
    ],
)
def test_a_grammar_begins_behind_whatever_leads_to_the_answer(name: str, answering: list[bytes]) -> None:
    reasoning = FORMATS[name]
    thinking = told(reasoning, f"<|start|>assistant{reasoning.starts[0]}", structured=STRUCTURED)
    assert thinking is not None
    assert list(thinking.ends[: thinking.answering]) == answering


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "identity"])
def test_every_format_says_how_it_ends(name: str) -> None:
    made = FORMATS[name]
    asked = Parsing(prompt_tail="<|start|>assistant" if name == "gptoss" else "")
    thinking = thinking_of(
        Formats(Bytes(), None, made).answer(asked), SamplingParams(thinking_token_budget=1)
    )
    assert thinking is not None
    assert bytes(thinking.end) == made.ends[0].encode() == thinking.ends[0]
    assert thinking.first in ("reasoning", "either")
    assert thinking.again == (name in ("cohere", "gemma", "gptoss", "mistral"))
