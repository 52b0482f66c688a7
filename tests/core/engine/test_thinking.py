"""Budgets of reasoning through a whole engine: the end is forced, and only that."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from llmkit.contracts import AddRequest, Thinking
from llmkit.contracts.speculator import DraftRequest
from llmkit.engine.thinking import Phase, ThinkingRules
from llmkit.testing.kv_model import generate

from .harness import Foresight, make_request
from .test_constrained import FORM, MODEL, asking, ending_with, make_engine

PROMPT = [5, 6, 7]
END = (90, 91, 92)
"""Tokens that the model does not write by itself, as far as these tests look."""


def thinking(name: str, prompt: Sequence[int], budget: int, **fields: Any) -> AddRequest:
    return make_request(name, prompt, 24, thinking=ending_with(*END, budget=budget), **fields)


def cut_short(prompt: Sequence[int], budget: int, count: int = 24) -> list[int]:
    """What the model writes where the end comes after so many tokens."""

    def allowed(output: Sequence[int]) -> set[int] | None:
        written = len(output) - budget
        return {END[written]} if 0 <= written < len(END) else None

    return generate(MODEL, prompt, count, allowed=allowed)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_end_is_written_where_the_budget_is_used_up(budget: int, overlapped: bool) -> None:
    engine = make_engine(overlapped=overlapped)
    engine.add(thinking("a", PROMPT, budget), make_request("free", PROMPT, 24))
    engine.run()
    assert engine.tokens == {"a": cut_short(PROMPT, budget), "free": generate(MODEL, PROMPT, 24)}
    assert engine.tokens["a"][budget : budget + len(END)] == [*END]
    assert engine.tokens["a"] != engine.tokens["free"]


@pytest.mark.parametrize("overlapped", [False, True])
def test_nothing_around_a_request_changes_where_it_ends(overlapped: bool) -> None:
    """Preemption, chunks of prompts, shared prompts, and drafts that are right, wrong or beyond the end."""
    engine = make_engine(
        num_blocks=26,
        max_num_batched_tokens=9,
        max_model_len=40,
        overlapped=overlapped,
        speculator=Speculating(),
    )
    prompts = [[n % 7, *range(10)] for n in range(6)]
    for number, prompt in enumerate(prompts):
        for choice in range(2):
            leader = f"{number}.0" if choice else None
            engine.add(thinking(f"{number}.{choice}", prompt, number * 2, leader=leader))
            engine.step()
    engine.run()
    for number, prompt in enumerate(prompts):
        wanted = cut_short(prompt, number * 2)
        assert engine.tokens[f"{number}.0"] == engine.tokens[f"{number}.1"] == wanted
    stats = engine.core.stats
    assert stats.preemptions > 0
    assert 0 < stats.accepted_tokens < stats.draft_tokens
    assert (stats.forced_tokens > 0, stats.blocks_held) == (True, 0)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("budget", [0, 3])
def test_a_grammar_begins_behind_the_end_that_was_forced(budget: int, overlapped: bool, drafts: bool) -> None:
    engine = make_engine(overlapped=overlapped, speculator=Speculating() if drafts else None)
    engine.add(asking("a", PROMPT, thinking=ending_with(*END, budget=budget)))
    engine.run()

    def allowed(output: Sequence[int]) -> set[int] | None:
        places = [None] * budget + [[token] for token in END] + FORM
        place = places[len(output)]
        return None if place is None else set(place)

    assert engine.tokens["a"] == generate(MODEL, PROMPT, budget + len(END) + len(FORM), allowed=allowed)
    assert engine.last["a"].finish == "stop"


def test_an_end_that_comes_by_itself_is_the_only_one() -> None:
    free = generate(MODEL, PROMPT, 24)
    end = free[3]
    assert free.index(end) == 3
    engine = make_engine()
    for budget in (3, 4, 30):
        request = make_request(f"{budget}", PROMPT, 24, thinking=ending_with(end, budget=budget))
        engine.add(request)
    engine.run()
    assert engine.tokens == dict.fromkeys(("3", "4", "30"), free)


class Speculating:
    """What the model would write by itself, so it knows of no end and no grammar."""

    def __init__(self) -> None:
        self._foresight = Foresight(MODEL)

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [drafts.tokens for drafts in self._foresight.propose(requests)]

    def forget(self, request_ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


# ---- where reasoning is ----

TEXTS = [bytes([n]) for n in range(128)]
LONGER = {128: b">\n", 129: b" <", 130: b"<a>", 131: b"</a>"}
VOCABULARY = [*TEXTS, b">\n", b" <"]


def phases(text: Sequence[int], *, grammar: bool = False, **more: Any) -> list[str]:
    given = {"first": "either", "end": tuple(b"</a>"), "ends": (b"</a>",), "starts": (b"<a>",)}
    spelt = {130: b"<a>", 131: b"</a>"}
    rules = ThinkingRules(Thinking(**{**given, "spelt": spelt, **more}), VOCABULARY, grammar=grammar)
    places = itertools.accumulate(text, rules.after, initial=rules.first())
    return [place.phase.name[0] for place in places]


@pytest.mark.parametrize(
    ("text", "expected", "more"),
    [
        pytest.param([*b"<a>x</a>y"], "OOORRRRRAA", {}, id="it begins and ends by itself"),
        pytest.param([130, *b"x", 131, *b"y"], "ORRAA", {}, id="special tokens"),
        pytest.param([*b"\n\n", 130], "OOOR", {}, id="blanks before"),
        pytest.param([*b"\n\n\n", 130], "OOOAA", {}, id="too many blanks"),
        pytest.param([*b"x<a>"], "OAAAA", {}, id="a later start is text"),
        pytest.param([*b"x<a>y"], "OAAARR", {"again": True}, id="a later start begins it again"),
        pytest.param([*b"x</a", 128, *b"y"], "RRRRRAA", {"first": "reasoning"}, id="an end within a token"),
        pytest.param([*b"x", 129, *b"/a>"], "RRRRRA", {"first": "reasoning"}, id="a token that ends in one"),
        pytest.param([*b"x[f"], "RRRA", {"first": "reasoning", "ends": (b"</a>", b"[f")}, id="another end"),
        pytest.param([*b"xy</a>z"], "RRCCCCAA", {"first": "reasoning", "budget": 2}, id="a used up budget"),
        pytest.param([*b"</a>z"], "CCCCAA", {"first": "reasoning", "budget": 0}, id="none is allowed"),
        pytest.param([*b"<a></a>z"], "OOOCCCCAA", {"budget": 0}, id="none is allowed, and it begins"),
        pytest.param([*b"x<</a>z"], "RRRCCCAA", {"first": "reasoning", "budget": 3}, id="half an end"),
        pytest.param(
            [131, *b"x", 130, *b"</a>x"],
            "RAACCCCAA",
            {"first": "reasoning", "budget": 1, "again": True},
            id="a budget is for all of it",
        ),
        pytest.param([*b"zyx"], "AAAA", {"first": "answer", "budget": 0}, id="it does not reason"),
    ],
)
def test_where_reasoning_is(text: list[int], expected: str, more: dict[str, Any]) -> None:
    assert "".join(phases(text, **more)) == expected


def test_before_a_grammar_reasoning_begins_with_its_one_token() -> None:
    assert "".join(phases([130, *b"x", 131], grammar=True, start=130)) == "ORRA"
    assert "".join(phases([*b"<a>"], grammar=True, start=130)) == "OAAA"
    assert "".join(phases([*b"<a>"], grammar=True)) == "AAAA"
    assert (
        "".join(phases([131, 130, *b"x"], grammar=True, start=130, again=True, first="reasoning")) == "RAAA"
    )
    assert Phase.ANSWERING.name[0] == "A"


@pytest.mark.parametrize(("answering", "constrained"), [(1, False), (2, True)])
def test_a_grammar_begins_behind_an_end_that_leads_to_the_answer(answering: int, constrained: bool) -> None:
    told = Thinking("reasoning", tuple(b"</a>"), (b"</a>", b"</b>", b"["), answering=answering)
    rules = ThinkingRules(told, VOCABULARY, grammar=True)
    *_, place = itertools.accumulate(b"x</b>", rules.after, initial=rules.first())
    assert (place.phase, place.constrained) == (Phase.ANSWERING, constrained)
