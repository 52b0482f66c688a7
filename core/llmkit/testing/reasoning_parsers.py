"""The compliance suite of reasoning parsers: examples, and what holds of every text and every cut."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import OutputParser, ParserSpec, ReasoningFormat
from llmkit.events import Content, Delta, Reasoning
from llmkit.types import FinishReason

MILLION = 1_000_000
CPU_SECONDS = 5.0
"""For a text of a million characters, whole and in pieces; a quadratic parser takes far longer."""
PIECE = 4
FILLER = "\x01"
"""A character that is in no marker."""


@dataclass(frozen=True, slots=True)
class Example:
    """One output and what it is; no two neighbouring events have the same kind."""

    id: str
    text: str
    events: tuple[Reasoning | Content, ...]
    prompt_tail: str = ""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    openers: Sequence[str] = ()

    @property
    def spec(self) -> ParserSpec:
        return ParserSpec(
            prompt_tail=self.prompt_tail, template_args=self.template_args, openers=self.openers
        )


class ReasoningParserContract:
    """What every reasoning parser must hold to."""

    syntax = r"\s{0,2}</?think>\n{0,2}"
    """A regular expression of what is no text: markers, with the blanks that belong to them."""
    longest_marker = len("\n\n</think>")
    """No more than this is ever held back."""

    def make_format(self) -> ReasoningFormat:
        """The format, the way its factory makes it."""
        raise NotImplementedError

    def examples(self) -> Sequence[Example]:
        """Outputs of the model: thinking, none, cut off, a call in it, with every prompt it may follow."""
        raise NotImplementedError

    def test_examples(self) -> None:
        for example in self.examples():
            assert parsed(self.make_format().parser(example.spec), [example.text]) == [*example.events], (
                example.id
            )

    def test_every_cut_gives_the_same(self) -> None:
        for example in self.examples():
            for pieces in cuts(example.text):
                parser = self.make_format().parser(example.spec)
                assert parsed(parser, pieces) == [*example.events], (example.id, pieces)

    @pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.full)])
    def test_any_text_gives_the_same_under_any_cut_and_nothing_is_lost(self, examples: int) -> None:
        specs = [example.spec for example in self.examples()]
        words = [*self._words(), "\n", "\n\n", " ", "a", "b c", "<", "|", ">", "[", "{", "é\U0001f600"]

        @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
        @given(st.sampled_from(specs), st.lists(st.sampled_from(words), max_size=12), st.randoms())
        def holds(spec: ParserSpec, chosen: list[str], source: random.Random) -> None:
            text = "".join(chosen)
            whole = parsed(self.make_format().parser(spec), [text])
            self._check_nothing_is_lost(spec, text)
            assert parsed(self.make_format().parser(spec), random_cut(text, source)) == whole

        holds()

    def test_nothing_is_lost_from_the_examples(self) -> None:
        for example in self.examples():
            for end in range(len(example.text) + 1):
                self._check_nothing_is_lost(example.spec, example.text[:end])

    def test_no_more_is_held_back_than_the_longest_marker(self) -> None:
        filler = FILLER * self.longest_marker
        for example in self.examples():
            for end in range(len(example.text) + 1):
                parser = self.make_format().parser(example.spec)
                shown = text_of(parser.feed(example.text[:end])) + text_of(parser.feed(filler))
                assert shown.endswith(filler), (example.id, end)

    def test_the_ends_of_pieces_may_be_anything(self) -> None:
        parser = self.make_format().parser(ParserSpec())
        assert parser.feed("") == []
        assert parser.finish(FinishReason.LENGTH) == []

    def test_its_time_is_linear_in_the_text(self) -> None:
        example = max(self.examples(), key=lambda example: (len(example.events), len(example.text)))
        text = "".join(self._words()) + "<" * 50 + "\n" * 50 + example.text
        text = example.text + text * (MILLION // len(text))
        started = time.process_time()
        whole = parsed(self.make_format().parser(example.spec), [text])
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        assert parsed(self.make_format().parser(example.spec), pieces) == whole
        assert time.process_time() - started < CPU_SECONDS

    def test_a_format_is_shared_by_requests_and_keeps_nothing(self) -> None:
        shared = self.make_format()
        open_parsers = [(example, shared.parser(example.spec)) for example in self.examples()]
        gathered: list[list[Delta]] = [[] for _ in open_parsers]
        for at in range(max(len(example.text) for example, _ in open_parsers)):
            for (example, parser), deltas in zip(open_parsers, gathered, strict=True):
                deltas += parser.feed(example.text[at : at + 1])
        for (example, parser), deltas in zip(open_parsers, gathered, strict=True):
            assert joined([*deltas, *parser.finish(FinishReason.STOP)]) == [*example.events], example.id

    def test_its_end_ends_reasoning(self) -> None:
        """What is written for the model where its budget is used up."""
        made = self.make_format()
        for example in self.examples():
            parser = made.parser(example.spec)
            for character in example.text:
                if any(isinstance(delta, Reasoning) for delta in parser.feed(character)):
                    assert parsed(parser, [made.ends[0], "answer"])[-1] == Content("answer"), example.id
                    break

    def _words(self) -> list[str]:
        """Markers and their beginnings, as they are in the examples."""
        found = [m[0] for example in self.examples() for m in re.finditer(self.syntax, example.text)]
        openers = [opener for example in self.examples() for opener in example.openers]
        markers = sorted({*found, *openers} - {""})
        return [*markers, *(marker[: len(marker) // 2] for marker in markers)]

    def _check_nothing_is_lost(self, spec: ParserSpec, text: str) -> None:
        """The text is the deltas in their order, with syntax between them and nothing else."""
        parser = self.make_format().parser(spec)
        deltas = [*parser.feed(text), *parser.finish(FinishReason.LENGTH)]
        syntax = f"(?:{self.syntax})*"
        expected = syntax.join(["", *(re.escape(text_of([delta])) for delta in deltas), ""])
        assert re.fullmatch(expected, text), (text, deltas)


def parsed(
    parser: OutputParser, pieces: Sequence[str], reason: FinishReason = FinishReason.STOP
) -> list[Delta]:
    """All that the parser gives for the pieces, neighbours of one kind joined."""
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return joined([*deltas, *parser.finish(FinishReason.STOP)])


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring texts of one kind as one event; each must have some text."""
    runs: list[tuple[type[Reasoning] | type[Content], list[str]]] = []
    for delta in deltas:
        assert isinstance(delta, Reasoning | Content), f"a reasoning parser gave {delta}"
        assert delta.text, "an event without text"
        if not runs or runs[-1][0] is not type(delta):
            runs.append((type(delta), []))
        runs[-1][1].append(delta.text)
    return [kind("".join(texts)) for kind, texts in runs]


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Reasoning | Content))


def cuts(text: str) -> Iterator[Sequence[str]]:
    """Each character alone, every cut in two, and some at random."""
    yield text
    for at in range(1, len(text)):
        yield text[:at], text[at:]
    source = random.Random(text)
    for _ in range(50):
        yield random_cut(text, source)


def random_cut(text: str, source: random.Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = source.randint(1, 12)
        pieces.append(text[at : at + size])
        at += size
    return pieces
