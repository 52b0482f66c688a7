"""Constrained answers through ``LLM``: a tiny random model, which would say anything, says what it must."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from llmkit import LLM, FinishReason, RequestError, SamplingParams
from llmkit.contracts import StructuredOutput
from llmkit.testing import bytes_tokenizer

PHONE = StructuredOutput("regex", "[0-9]{3}-[0-9]{4}")
YES = StructuredOutput("choice", '["yes", "no", "né"]')
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "n": {"type": "integer", "minimum": -5, "maximum": 17},
    },
    "required": ["name", "n"],
}
OBJECT = StructuredOutput("json", json.dumps(SCHEMA))
DATE = StructuredOutput(
    "json", '{"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 2}'
)
NESTED = StructuredOutput("grammar", 'root ::= "(" root ")" | [a-c]{1,3}')
EACH = (PHONE, YES, OBJECT, DATE, NESTED)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(bytes_tokenizer.write(tmp_path_factory.mktemp("grammars") / "model"))


def open_llm(model: str, **settings: Any) -> LLM:
    return LLM(model, load_format="dummy", deterministic=True, **{"max_model_len": 1024, **settings})


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with open_llm(model) as llm:
        yield llm


def asking(wanted: StructuredOutput | None, seed: int = 0, **more: Any) -> SamplingParams:
    return SamplingParams(structured=wanted, seed=seed, max_tokens=more.pop("max_tokens", 400), **more)


def is_right(wanted: StructuredOutput, text: str) -> bool:
    if wanted is PHONE:
        return re.fullmatch(wanted.source, text) is not None
    if wanted is YES:
        return text in json.loads(wanted.source)
    if wanted is NESTED:
        return re.fullmatch(r"\(*[a-c]{1,3}\)*", text) is not None and text.count("(") == text.count(")")
    value = json.loads(text)
    if wanted is OBJECT:
        return len(value["name"]) <= 9 and -5 <= value["n"] <= 17 and set(value) == {"name", "n"}
    return len(value) <= 2 and all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in value)


def texts(llm: LLM, params: list[SamplingParams]) -> list[str]:
    found = []
    for output in llm.generate(["say"] * len(params), params):
        for choice in output.choices:
            assert choice.finish_reason is FinishReason.STOP
            found.append(choice.text)
    return found


def test_every_kind_is_kept_and_differs_by_choice(llm: LLM) -> None:
    params = [asking(wanted, seed=3, n=4) for wanted in EACH]
    found = texts(llm, params)
    for place, wanted in enumerate(EACH):
        mine = found[4 * place : 4 * place + 4]
        assert all(is_right(wanted, text) for text in mine), mine
        assert wanted is YES or len(set(mine)) > 1, "every choice has a grammar of its own"


def test_an_answer_is_the_same_whatever_runs_beside_it(llm: LLM) -> None:
    params = [asking(wanted, seed=seed) for seed in (1, 2) for wanted in EACH]
    params += [asking(None, seed=5, max_tokens=30, ignore_eos=True) for _ in range(3)]
    alone = [llm.generate("say", each)[0].token_ids for each in params]
    together = [output.token_ids for output in llm.generate(["say"] * len(params), params)]
    assert together == alone


def test_preemption_does_not_change_an_answer(llm: LLM, model: str) -> None:
    params = [
        asking(wanted, seed=seed, max_tokens=150) for seed in range(4) for wanted in (OBJECT, DATE, PHONE)
    ]
    expected = texts(llm, params)
    few = {"max_model_len": 160, "block_size": 16, "num_gpu_blocks_override": 14}
    with open_llm(model, enable_prefix_caching=False, **few) as small:
        assert texts(small, params) == expected
        assert small._engine is not None
        assert small._engine.stats.preemptions > 0


def test_whitespace_does_not_run_away(llm: LLM) -> None:
    """A model that likes nothing so much as spaces still comes to an end. Source: case B098."""
    likes = {ord(" "): 100.0, ord("\n"): 95.0, ord("}"): 60.0, ord('"'): 50.0}
    output = llm.generate(
        "say", asking(StructuredOutput("json_object"), max_tokens=200, logit_bias=likes, temperature=0.0)
    )[0]
    assert output.finish_reason is FinishReason.STOP
    assert isinstance(json.loads(output.text), dict)
    outside = re.sub(r'"(?:\\.|[^"\\])*"', '""', output.text)
    assert max(map(len, re.findall(r"\s+", outside)), default=0) <= 32


def test_a_stop_string_ends_it_earlier(llm: LLM) -> None:
    output = llm.generate("say", asking(PHONE, stop=("-",)))[0]
    assert re.fullmatch("[0-9]{3}", output.text)
    assert output.choices[0].stop_reason == "-"


def test_an_end_beats_the_length_and_a_short_limit_cuts(llm: LLM) -> None:
    assert llm.generate("say", asking(PHONE, max_tokens=8))[0].finish_reason is FinishReason.STOP
    cut = llm.generate("say", asking(PHONE, max_tokens=5))[0]
    assert (cut.finish_reason, len(cut.text)) == (FinishReason.LENGTH, 5)


def test_the_end_token_is_not_waited_for_nor_shown(llm: LLM) -> None:
    for ignore_eos in (False, True):
        output = llm.generate("say", asking(PHONE, ignore_eos=ignore_eos, logprobs=0))[0]
        assert is_right(PHONE, output.text)
        assert len(output.token_ids) == len(output.text) == len(output.logprobs or ())


def test_a_grammar_and_a_list_of_tokens_that_exclude_each_other_are_the_requests_fault(llm: LLM) -> None:
    digits = StructuredOutput("regex", "[0-9]+")
    with pytest.raises(RequestError, match="no token can be sampled") as caught:
        llm.generate("a", SamplingParams(structured=digits, allowed_token_ids=(97,), max_tokens=4))
    assert caught.value.code == "unsatisfiable"


def test_what_cannot_be_honoured_generates_nothing(llm: LLM) -> None:
    with pytest.raises(RequestError, match="look-around"):
        llm.generate(["say", "say"], [asking(PHONE), asking(StructuredOutput("regex", "(?=a)b"))])
    assert llm._engine is not None
    assert llm._engine.stats.running == llm._engine.stats.waiting == 0
