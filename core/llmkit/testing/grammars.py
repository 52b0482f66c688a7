"""What every grammar backend must hold to.

A plugin's tests subclass :class:`GrammarContract`, name their backend and run it with pytest. The vocabulary
is one of bytes with a few longer tokens, more embedding rows than tokens, and control tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from llmkit.contracts import Grammar, GrammarBackend, GrammarMatcher, GrammarSpec, StructuredOutput
from llmkit.testing.components import create

EOS, START, OTHER_EOS = 256, 257, 258
LONGER = (
    b'{"',
    b'":',
    b'", "',
    b"name",
    b"na",
    b"  ",
    b"\n  ",
    b"true",
    b"12",
    b"yes",
    b"no",
    "é".encode(),
    b"\xa9x",
)
VOCAB = [*(bytes([byte]) for byte in range(256)), b"", b"", b"", *LONGER]
ROWS = 300
"""Embedding rows: beyond the vocabulary, and no multiple of 32."""
SPEC = GrammarSpec(VOCAB, frozenset({EOS, START, OTHER_EOS}), (EOS, OTHER_EOS), ROWS)

CLOSING = frozenset(b'"]}')

WANTED = (
    StructuredOutput("json_object"),
    StructuredOutput(
        "json",
        '{"type": "object", "properties": {"name": {"type": "string"},'
        ' "n": {"enum": ["é", 12]}}, "required": ["name"], "additionalProperties": false}',
    ),
    StructuredOutput("regex", "(yes|no){1,3}[0-9a-fé]*;"),
    StructuredOutput("choice", '["yes", "no", "yes, \\"please\\"", "né\\n"]'),
)
"""Of every kind that has one form for all backends."""


def mask_of(matcher: GrammarMatcher) -> set[int]:
    """The tokens that may come; checks that every word was written and no row beyond the vocabulary set."""
    mask = np.full(-(-ROWS // 32), 0x5A5A5A5A, np.int32)
    matcher.fill_mask(mask)
    again = np.full(-(-ROWS // 32), -1, np.int32)
    matcher.fill_mask(again)
    assert (mask == again).all(), "a word of the mask was left as it was, or asking changes the answer"
    allowed = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
    assert max(allowed, default=0) < len(VOCAB), "a row without a token is allowed"
    return allowed


def accepts(grammar: Grammar, text: str | bytes) -> bool:
    """Whether ``text`` is complete in some tokens that the masks allow one after the other."""
    return _reaches(grammar.matcher(), text.encode() if isinstance(text, str) else text, set())


def _reaches(matcher: GrammarMatcher, rest: bytes, tried: set[int]) -> bool:
    if len(rest) in tried:  # another way to spell what comes before
        return False
    tried.add(len(rest))
    allowed = mask_of(matcher)
    if not rest:
        return EOS in allowed
    for token in sorted(allowed - {EOS, OTHER_EOS}, key=lambda token: -len(VOCAB[token])):
        if rest.startswith(VOCAB[token]):
            assert matcher.accept(token), "what the mask allows is accepted"
            if _reaches(matcher, rest[len(VOCAB[token]) :], tried):
                return True
            matcher.rollback(1)
    return False


def walk(grammar: Grammar, rng: random.Random, most: int) -> tuple[bytes, bool]:
    """A random text, and whether it is complete after at most ``most`` tokens; inclined to come to an end."""
    matcher = grammar.matcher()
    text = b""
    for step in range(most):
        allowed = mask_of(matcher)
        if EOS in allowed and (len(allowed) <= 2 or rng.random() < 0.3):
            return text, True
        closing = [token for token in sorted(allowed) if token in CLOSING and rng.random() < step / most]
        token = rng.choice(closing or sorted(allowed - {EOS, OTHER_EOS}))
        assert matcher.accept(token)
        text += VOCAB[token]
    return text, False


class GrammarContract:
    """Subclass it and set ``backend``; ``plugin`` too where the backend is not built in."""

    backend: str
    plugin: str | None = None
    wanted: Sequence[StructuredOutput] = WANTED
    """What it is tried with: replace it by those that the backend honours."""

    @pytest.fixture(scope="class")
    def made(self) -> GrammarBackend:
        """One backend for all tests of a class: making one may take a second."""
        made: GrammarBackend = create("grammar", self.backend, SPEC, plugin=self.plugin)
        return made

    def grammars(self, made: GrammarBackend) -> list[Grammar]:
        return [made.load(made.compile(wanted)) for wanted in self.wanted]

    def test_masks_and_accept_say_the_same(self, made: GrammarBackend) -> None:
        rng = random.Random(1)
        for grammar in self.grammars(made):
            matcher = grammar.matcher()
            for _ in range(20):
                allowed = mask_of(matcher)
                assert START not in allowed, "a control token is no text"
                for token in rng.sample(range(ROWS), 25):
                    if token not in (EOS, OTHER_EOS):
                        taken = matcher.accept(token)
                        # A backend may allow one way to spell a forced text and accept others.
                        assert taken == (token in allowed) or (taken and len(allowed) == 1)
                        if taken:
                            matcher.rollback(1)
                assert mask_of(matcher) == allowed, "trying left a trace"
                onward = sorted(allowed - {EOS, OTHER_EOS})
                if not onward:
                    break
                assert matcher.accept(rng.choice(onward))

    def test_going_back_is_as_not_having_gone(self, made: GrammarBackend) -> None:
        rng = random.Random(2)
        for grammar in self.grammars(made):
            matcher = grammar.matcher()
            seen = [mask_of(matcher)]
            for _ in range(12):
                onward = sorted(seen[-1] - {EOS, OTHER_EOS})
                if not onward:
                    break
                assert matcher.accept(rng.choice(onward))
                seen.append(mask_of(matcher))
            while len(seen) > 1:
                count = rng.randint(1, len(seen) - 1)
                matcher.rollback(count)
                del seen[-count:]
                assert mask_of(matcher) == seen[-1]

    def test_end_tokens_come_where_the_text_is_complete(self, made: GrammarBackend) -> None:
        grammar = made.load(made.compile(StructuredOutput("choice", '["no", "noé"]')))
        matcher = grammar.matcher()
        assert not {EOS, OTHER_EOS} & mask_of(matcher)
        assert matcher.accept(VOCAB.index(b"no"))
        assert {EOS, OTHER_EOS} <= mask_of(matcher)
        assert matcher.accept(VOCAB.index("é".encode()))
        assert mask_of(matcher) == {EOS, OTHER_EOS}

    def test_answers_do_not_know_of_each_other(self, made: GrammarBackend) -> None:
        for grammar in self.grammars(made):
            first, second = grammar.matcher(), grammar.matcher()
            start = mask_of(second)
            assert first.accept(min(mask_of(first) - {EOS, OTHER_EOS}))
            assert mask_of(second) == start == mask_of(grammar.matcher())

    def test_what_was_compiled_elsewhere_is_the_same(self, made: GrammarBackend) -> None:
        other: GrammarBackend = create("grammar", self.backend, SPEC, plugin=self.plugin)
        for wanted in self.wanted:
            data = made.compile(wanted)
            assert isinstance(data, bytes)
            texts = [walk(each.load(data), random.Random(3), 60) for each in (made, other)]
            assert texts[0] == texts[1]

    @pytest.mark.parametrize(
        "wanted",
        [
            StructuredOutput("json", "{"),
            StructuredOutput("json", '{"type": "objekt"}'),
            StructuredOutput("regex", "(a"),
            StructuredOutput("choice", "[]"),
            StructuredOutput("grammar", "%%"),
            StructuredOutput("structural_tag", "3"),
        ],
        ids=lambda wanted: f"{wanted.kind}-{wanted.source}",
    )
    def test_nonsense_is_refused_in_words(self, made: GrammarBackend, wanted: StructuredOutput) -> None:
        with pytest.raises(ValueError, match=r"(?s)^.{5,1000}$"):
            made.compile(wanted)


__all__ = [
    "EOS",
    "ROWS",
    "SPEC",
    "VOCAB",
    "WANTED",
    "GrammarContract",
    "accepts",
    "mask_of",
    "walk",
]
