"""The compliance suite of output stages: examples, and what holds of every answer and every cut."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import OutputStage, StageMaker
from llmkit.events import ArgumentsDelta, Content, Delta, Reasoning, ToolCallClosed, ToolCallOpened
from llmkit.testing.reasoning_parsers import FILLER, MILLION, PIECE, cuts, random_cut
from llmkit.types import FinishReason

CPU_SECONDS = 10.0
"""For a quarter of a million characters in small pieces; a quadratic stage takes far longer."""
TEXT = (Content, Reasoning, ArgumentsDelta)
CALL = (ToolCallOpened, ToolCallClosed)


@dataclass(frozen=True, slots=True)
class Example:
    """An answer and what the stage makes of it; in both no neighbours are text of one kind."""

    id: str
    answer: tuple[Delta, ...]
    shown: tuple[Delta, ...]


class OutputStageContract:
    """What every output stage must hold to."""

    most_held = 0
    """No more characters than these are ever held back."""

    def make_stages(self) -> StageMaker:
        """What the plugin's factory makes."""
        raise NotImplementedError

    def examples(self) -> Sequence[Example]:
        """Answers of every kind that it tells apart: text, reasoning, calls, and what it leaves alone."""
        raise NotImplementedError

    def words(self) -> Sequence[str]:
        """Texts that it changes, and some that it nearly does: answers are put together from these."""
        raise NotImplementedError

    def test_examples(self) -> None:
        for example in self.examples():
            assert shown(self.make_stages().stage(), example.answer) == [*example.shown], example.id

    def test_every_cut_gives_the_same(self) -> None:
        for example in self.examples():
            for at, delta in enumerate(example.answer):
                if isinstance(delta, TEXT):
                    for pieces in cuts(delta.text):
                        cut: list[Delta] = [type(delta)(piece) for piece in pieces]
                        cut = [*example.answer[:at], *cut, *example.answer[at + 1 :]]
                        assert shown(self.make_stages().stage(), cut) == [*example.shown], (example.id, cut)

    @pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.full)])
    def test_any_answer_is_shown_the_same_under_any_cut(self, examples: int) -> None:
        @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
        @given(_answers([*self.words(), " ", "a", "\n", "é\U0001f600"]), st.randoms())
        def holds(answer: list[Delta], source: random.Random) -> None:
            whole = shown(self.make_stages().stage(), answer)
            _check_calls(answer, whole)
            cut = [piece for delta in answer for piece in _pieces(delta, source)]
            assert shown(self.make_stages().stage(), cut) == whole, cut

        holds()

    def test_an_answer_may_end_anywhere(self) -> None:
        for example in self.examples():
            for end in range(len(example.answer) + 1):
                for reason in FinishReason:
                    shown(self.make_stages().stage(), example.answer[:end], reason)

    def test_no_more_is_held_back_than_it_says(self) -> None:
        for kind in (Content, Reasoning):
            for word in self.words():
                for end in range(len(word) + 1):
                    stage = self.make_stages().stage()
                    deltas = stage.feed(kind(word[:end])) if end else []
                    deltas += stage.feed(kind(FILLER * (2 * self.most_held + 1)))
                    count = sum(delta.text.count(FILLER) for delta in deltas if isinstance(delta, TEXT))
                    assert count > self.most_held, (word[:end], count)

    def test_choices_do_not_see_each_other(self) -> None:
        maker = self.make_stages()
        stages = [maker.stage() for _ in self.examples()]
        gathered: list[list[Delta]] = [[] for _ in stages]
        for at in range(max(len(example.answer) for example in self.examples())):
            for example, stage, deltas in zip(self.examples(), stages, gathered, strict=True):
                for delta in example.answer[at : at + 1]:
                    deltas += stage.feed(delta)
        for example, stage, deltas in zip(self.examples(), stages, gathered, strict=True):
            assert joined([*deltas, *stage.finish(FinishReason.STOP)]) == [*example.shown], example.id

    def test_its_time_is_linear_in_the_text(self) -> None:
        for unit in ("a", " ".join(self.words())):
            many = unit * (MILLION // 4 // len(unit))
            pieces = [Content(many[at : at + PIECE]) for at in range(0, len(many), PIECE)]
            started = time.process_time()
            shown(self.make_stages().stage(), pieces)
            assert time.process_time() - started < CPU_SECONDS, unit[:80]


def shown(
    stage: OutputStage, answer: Iterable[Delta], reason: FinishReason = FinishReason.STOP
) -> list[Delta]:
    """All that the stage gives for an answer, neighbours of one kind joined."""
    deltas: list[Delta] = []
    for delta in answer:
        given = stage.feed(delta)
        if isinstance(delta, CALL):
            assert given[-1:] == [delta], f"told of {delta}, it gave {given}"
            given, deltas = [], deltas + given
        assert all(isinstance(one, TEXT) for one in given), f"told of {delta}, it gave {given}"
        deltas += given
    rest = stage.finish(reason)
    assert all(isinstance(one, TEXT) for one in rest), f"at the end it gave {rest}"
    return joined([*deltas, *rest])


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring texts of one kind as one event; each must have some text."""
    runs: list[tuple[type[Delta], list[Delta]]] = []
    for delta in deltas:
        if not isinstance(delta, TEXT) or not runs or runs[-1][0] is not type(delta):
            runs.append((type(delta), []))
        runs[-1][1].append(delta)
    return [_one(run) for _, run in runs]


def _one(run: Sequence[Delta]) -> Delta:
    first = run[0]
    if not isinstance(first, TEXT):
        return first
    texts = [delta.text for delta in run if isinstance(delta, TEXT)]
    assert all(texts), "an event without text"
    return type(first)("".join(texts))


def _answers(words: Sequence[str]) -> st.SearchStrategy[list[Delta]]:
    """Reasoning, then content and calls in any order."""
    texts = st.lists(st.sampled_from(words), max_size=8).map("".join)
    calls = st.lists(st.one_of(texts, st.integers(), st.none()), max_size=3).map(_call)
    rest = st.lists(st.one_of(texts.map(Content).map(_alone), calls), max_size=4)
    return st.tuples(texts.map(Reasoning).map(_alone), rest).map(
        lambda made: joined([delta for part in (made[0], *made[1]) for delta in part])
    )


def _alone(delta: Content | Reasoning) -> list[Delta]:
    return [delta] if delta.text else []


def _call(values: Sequence[str | int | None]) -> list[Delta]:
    arguments = json.dumps({f"k{at}": value for at, value in enumerate(values)}, ensure_ascii=len(values) > 1)
    return [ToolCallOpened("f"), ArgumentsDelta(arguments), ToolCallClosed()]


def _pieces(delta: Delta, source: random.Random) -> Iterator[Delta]:
    if isinstance(delta, TEXT):
        yield from map(type(delta), random_cut(delta.text, source))
    else:
        yield delta


def _check_calls(answer: Sequence[Delta], whole: Sequence[Delta]) -> None:
    """The same calls in the same order, and arguments that are still objects."""
    assert [delta for delta in whole if isinstance(delta, CALL)] == [
        delta for delta in answer if isinstance(delta, CALL)
    ]
    for delta in whole:
        if isinstance(delta, ArgumentsDelta):
            assert isinstance(json.loads(delta.text), dict), delta.text
