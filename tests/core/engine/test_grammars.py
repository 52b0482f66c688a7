"""The grammars of running requests, with xgrammar over a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from llmkit.contracts import AddRequest, SamplingParams
from llmkit.contracts.grammar import GrammarSpec
from llmkit.engine.constraint import MAX_AHEAD
from llmkit.engine.grammars import GrammarManager
from llmkit.messages import CompiledGrammar, Thinking

xgrammar = pytest.importorskip("xgrammar")

EOS = 256
LONGER = (b"yes", b"no", b"aa", b"\n\n")
VOCAB = [*(bytes([byte]) for byte in range(256)), b"", *LONGER]
YES, NO, AA, BLANK_LINE = 257, 258, 259, 260
ROWS = 300
"""Embedding rows: more than there are tokens, and no multiple of 32."""
SPEC = GrammarSpec(VOCAB, frozenset({EOS}), (EOS,), ROWS)


class Regexes:
    """The source is a regular expression."""

    def __init__(self, spec: GrammarSpec, gate: threading.Event | None = None) -> None:
        vocab = [*spec.token_bytes, *[b""] * (spec.vocab_size - len(spec.token_bytes))]
        info = xgrammar.TokenizerInfo(vocab, vocab_size=spec.vocab_size, stop_token_ids=list(spec.eos_ids))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._gate = gate
        self.loads = 0

    def load(self, data: bytes) -> Any:
        if self._gate is not None:
            assert self._gate.wait(30)
        self.loads += 1
        return Compiled(self._compiler.compile_regex(data.decode()))

    def compile(self, wanted: Any) -> bytes:
        raise NotImplementedError


class Compiled:
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def matcher(self) -> Any:
        return Matcher(xgrammar.GrammarMatcher(self._compiled))


class Matcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.accepted = 0

    def fill_mask(self, mask: Any) -> None:
        self._matcher.fill_next_token_bitmask(mask.reshape(1, -1))

    def accept(self, token_id: int) -> bool:
        taken = bool(self._matcher.accept_token(token_id))
        self.accepted += taken
        return taken

    def rollback(self, count: int) -> None:
        self.accepted -= count
        self._matcher.rollback(count)


def request(name: str, regex: str | None, thinking: Thinking | None = None) -> AddRequest:
    grammar = None if regex is None else CompiledGrammar("regexes", regex.encode())
    return AddRequest(name, [1], SamplingParams(), 0, 99, (EOS,), grammar=grammar, thinking=thinking)


def thinks(end: bytes, **more: Any) -> Thinking:
    """Reasoning from the first token on, unless ``more`` says otherwise."""
    return Thinking(**{"first": "reasoning", "end": tuple(end), "ends": (end,), **more})


def manager_of(*requests: AddRequest) -> GrammarManager:
    manager = GrammarManager(lambda: SPEC, lambda name, spec: Regexes(spec))
    for each in requests:
        manager.add(each)
        while not manager.ready(each.request_id):
            manager.wait(30)
    return manager


def allowed(manager: GrammarManager, name: str, drafts: Sequence[int] = ()) -> list[set[int] | None]:
    """Of each logits row of the request: the tokens that may come, None for any."""
    masks, indices = manager.masks([("another", [7]), (name, drafts)])
    words = np.frombuffer(masks or b"", "<i4").reshape(len(indices), -(-ROWS // 32))
    rows: list[set[int] | None] = [None] * (1 + len(drafts))
    for index, row in zip(indices, words, strict=True):
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        rows[index - 2] = set(np.flatnonzero(bits).tolist())
    return rows


def test_masks_follow_what_was_accepted_until_the_text_is_complete() -> None:
    manager = manager_of(request("a", "(yes|no)!"))
    assert allowed(manager, "a") == [{ord("y"), ord("n"), YES, NO}]
    assert manager.accept("a", [ord("n")]) is None
    assert allowed(manager, "a") == [{ord("o")}]
    assert manager.accept("a", [*b"o!"]) == 1
    assert manager_of(request("b", "(yes|no)!")).accept("b", [NO, ord("!")]) == 1


def test_an_end_token_completes_a_text_that_could_go_on() -> None:
    manager = manager_of(request("a", "a*"))
    assert allowed(manager, "a") == [{ord("a"), AA, EOS}]
    assert manager.accept("a", [AA, ord("a")]) is None
    assert manager.accept("a", [AA, EOS]) == 1


@pytest.mark.parametrize("token", [ord("x"), EOS, YES, ROWS - 1])
def test_a_token_that_may_not_come_is_an_error(token: int) -> None:
    manager = manager_of(request("a", "ab+"))
    assert manager.accept("a", [ord("a")]) is None
    with pytest.raises(ValueError, match=f"token {token} came where the grammar does not allow it"):
        manager.accept("a", [token])


def test_reasoning_may_begin_with_its_one_token() -> None:
    begin, end = ord("<"), ord(">")
    thinking = thinks(b">", first="either", starts=(b"<",), start=begin)
    manager = manager_of(request("a", "ab", thinking), request("b", "ab", thinking))
    for name in ("a", "b"):
        assert allowed(manager, name) == [{ord("a"), begin}]
        assert manager.propose(name, [begin, 7], 4) == ([begin, 7], 0)
        assert allowed(manager, name, [begin]) == [{ord("a"), begin}, None]
    assert manager.accept("a", [begin]) is None
    assert allowed(manager, "a") == [None]
    assert manager.accept("a", [*b"x<y", end]) is None
    assert allowed(manager, "a") == [{ord("a")}]
    assert manager.accept("a", [*b"ab"]) == 1
    assert manager.accept("b", [ord("a")]) is None
    assert allowed(manager, "b") == [{ord("b")}]
    with pytest.raises(ValueError, match="does not allow it"):
        manager.accept("b", [begin])


def test_forced_tokens_come_first_and_drafts_as_far_as_they_may() -> None:
    manager = manager_of(request("a", "id=[0-9]+;"))
    assert manager.propose("a", [*b"id=12;;"], 9) == ([*b"id=12;"], 3)
    assert manager.propose("a", [*b"id=12;"], 4) == ([*b"id=1"], 3)
    assert manager.propose("a", [*b"xx"], 9) == ([*b"id="], 3)
    assert manager.propose("a", [], 2) == ([*b"id"], 2)
    assert manager.accept("a", [*b"id=1"]) is None
    assert manager.propose("a", [*b"2x3"], 9) == ([*b"2"], 0)
    assert manager.propose("a", [], 9) == ([], 0)
    assert manager.propose("another", [1, 2, 3], 2) == ([1, 2], 0)


def test_no_end_token_and_no_endless_run_is_put_ahead() -> None:
    manager = manager_of(request("a", "b" * 40), request("c", "d?"))
    assert manager.propose("a", [], 99) == ([*b"b" * MAX_AHEAD], MAX_AHEAD)
    assert manager.propose("c", [ord("d"), EOS, 5], 9) == ([ord("d")], 0)


def test_rows_of_drafts_are_what_step_by_step_masks_are() -> None:
    text = [*b"id=407"]
    step = manager_of(request("a", "id=[0-9]{1,3};"))
    rows = allowed(step, "a")
    for token in text:
        assert step.accept("a", [token]) is None
        rows += allowed(step, "a")
    fresh = manager_of(request("a", "id=[0-9]{1,3};"))
    assert allowed(fresh, "a", text) == rows
    assert fresh.propose("a", text, 9) == (text, 3)
    assert allowed(fresh, "a", text) == rows
    assert allowed(fresh, "a", text[:2]) == rows[:3]
    assert fresh.accept("a", text[:4]) is None
    assert allowed(fresh, "a", text[4:]) == rows[4:]


def test_behind_a_draft_that_may_not_come_nothing_is_computed() -> None:
    manager = manager_of(request("a", "id=[0-9]+;"))
    assert allowed(manager, "a", [ord("i"), ord("x"), ord("="), EOS]) == [
        {ord("i")}, {ord("d")}, {EOS}, {EOS}, {EOS},
    ]  # fmt: skip
    assert manager.accept("a", [*b"id=5"]) is None, "looking ahead left no trace"


def test_drafts_that_were_refused_leave_no_trace() -> None:
    manager = manager_of(request("a", "[a-z]{3}[0-9]"))
    assert manager.propose("a", [*b"xyz1"], 9) == ([*b"xyz1"], 0)
    assert len(allowed(manager, "a", [*b"xyz1"])) == 5
    assert manager.accept("a", [*b"xa"]) is None
    assert allowed(manager, "a") == [{*range(ord("a"), ord("z") + 1)}]
    assert manager.accept("a", [*b"b7"]) == 1


def test_reasoning_is_free_until_it_ends() -> None:
    manager = manager_of(request("a", "(yes|no)", thinks(b"<>")))
    assert allowed(manager, "a") == [None]
    assert manager.accept("a", [*b"why <"]) is None
    assert allowed(manager, "a") == [None]
    assert allowed(manager, "a", [62, YES]) == [None, {ord("y"), ord("n"), YES, NO}, {EOS}]
    assert allowed(manager, "a") == [None], "looking ahead left no trace"
    assert manager.accept("a", [62]) is None
    assert allowed(manager, "a") == [{ord("y"), ord("n"), YES, NO}]
    assert manager.accept("a", [YES]) == 0


def test_newlines_may_stand_between_the_end_of_reasoning_and_the_answer() -> None:
    newline, begins = ord("\n"), {ord("y"), ord("n"), YES, NO}
    manager = manager_of(*(request(name, "(yes|no)", thinks(b">", blanks=2)) for name in "abcd"))
    for name in "abcd":
        assert manager.accept(name, [*b"why\n>"]) is None
        assert allowed(manager, name) == [begins | {newline, BLANK_LINE}]
        assert manager.propose(name, [newline, newline, YES, 7], 4) == ([newline, newline, YES], 0)
        assert allowed(manager, name, [newline, NO]) == [
            begins | {newline, BLANK_LINE},
            begins | {newline},
            {EOS},
        ]
    assert manager.accept("a", [newline]) is None
    assert allowed(manager, "a") == [begins | {newline}]
    assert manager.accept("a", [newline, NO]) == 1
    assert manager.accept("b", [BLANK_LINE]) is None
    assert allowed(manager, "b") == [begins]
    assert manager.accept("c", [YES]) == 0
    with pytest.raises(ValueError, match="the grammar does not allow it"):
        manager.accept("d", [BLANK_LINE, newline])


def test_newlines_in_the_token_that_ends_reasoning_count() -> None:
    vocab = [*VOCAB, b">\n"]
    spec = GrammarSpec(vocab, frozenset({EOS}), (EOS,), ROWS)
    manager = GrammarManager(lambda: spec, lambda name, spec: Regexes(spec))
    manager.add(request("a", "no", thinks(b">", blanks=2)))
    while not manager.ready("a"):
        manager.wait(30)
    assert manager.accept("a", [ord("x"), len(vocab) - 1]) is None
    assert allowed(manager, "a") == [{ord("n"), NO, ord("\n")}]


def test_the_end_of_reasoning_and_the_answer_may_come_in_one_step() -> None:
    manager = manager_of(request("a", "(yes|no)", thinks(b">")))
    assert manager.accept("a", [*b"well>", YES]) == 5


def test_equal_grammars_are_loaded_once_and_delay_nobody() -> None:
    gate = threading.Event()
    backends: list[Regexes] = []

    def make(name: str, spec: GrammarSpec) -> Regexes:
        backends.append(Regexes(spec, gate))
        return backends[-1]

    manager = GrammarManager(lambda: SPEC, make)
    manager.add(request("a", "x+"))
    manager.add(request("b", "x+"))
    manager.add(AddRequest("free", [1], SamplingParams(), 0, 9))
    assert manager.ready("free")
    assert not manager.ready("a")
    gate.set()
    while not (manager.ready("a") and manager.ready("b")):
        manager.wait(30)
    assert [backend.loads for backend in backends] == [1]
    assert manager.accept("a", [ord("x")]) is None
    assert EOS not in (allowed(manager, "b")[0] or ()), "each has a place of its own"
    manager.shutdown()


def test_nobody_waits_for_a_grammar_that_is_there() -> None:
    manager = manager_of()
    manager.add(request("a", "x+"))
    assert manager.wait(30)
    assert manager.ready("a")
    assert not manager.wait(0), "nothing has come since"
    manager.add(request("b", "x+"))
    assert manager.wait(0)
    assert manager.ready("b")


def test_what_cannot_be_loaded_ends_its_request_alone() -> None:
    manager = manager_of(request("good", "x+"))
    manager.wait(0)
    manager.add(request("bad", "(((x"))
    manager.wait(30)
    with pytest.raises(ValueError, match="could not be loaded"):
        manager.ready("bad")
    assert manager.ready("bad"), "forgotten"
    assert manager.accept("good", [ord("x")]) is None
    manager.remove("good")
    manager.remove("good")
    assert manager.masks([("good", [])]) == (None, [])


class Breaking(Matcher):
    """Fails from the ``after``-th mask on, or takes long for it."""

    def __init__(self, matcher: Any, after: int, spin_s: float) -> None:
        super().__init__(matcher)
        self._left = after
        self._spin_s = spin_s

    def fill_mask(self, mask: Any) -> None:
        self._left -= 1
        if self._left < 0 and not self._spin_s:
            raise RuntimeError("out of fuel")
        began_s = time.thread_time()
        while self._left < 0 and time.thread_time() - began_s < self._spin_s:
            pass
        super().fill_mask(mask)


@pytest.mark.parametrize(
    ("spin_s", "words"), [(0.0, "the grammar failed: RuntimeError: out of fuel"), (0.2, "too costly")]
)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_grammar_that_breaks_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, spin_s: float, words: str, after: int
) -> None:
    monkeypatch.setattr("llmkit.engine.constraint.MAX_MASK_S", 0.1)
    monkeypatch.setattr(
        Compiled, "matcher", lambda self: Breaking(xgrammar.GrammarMatcher(self._compiled), after, spin_s)
    )
    if after == 0:
        with pytest.raises(ValueError, match=words):
            manager_of(request("a", "[a-z]+"))
        return
    manager = manager_of(request("a", "[a-z]+"))
    drafts, _ = manager.propose("a", [*b"xyz"], 3)
    assert len(manager.masks([("a", drafts)])[1]) == 1 + len(drafts), "looking ahead raises nothing"
    with pytest.raises(ValueError, match=words):
        manager.accept("a", [*b"xyz"])
