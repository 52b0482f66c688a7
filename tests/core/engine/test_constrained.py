"""Requests with a grammar through a whole engine: masks, forced tokens, ends and failures."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from llmkit.contracts import AddRequest, FinishReason, SamplingParams
from llmkit.contracts.grammar import GrammarSpec
from llmkit.engine.drafts import SpeculativeDrafter
from llmkit.engine.grammars import GrammarManager
from llmkit.messages import CompiledGrammar, Thinking
from llmkit.testing.kv_model import KVModelSpec, generate

from .harness import Engine, make_request

MODEL = KVModelSpec()
EOS = 96
SPEC = GrammarSpec([bytes([n]) for n in range(97)], frozenset({EOS}), (EOS,), 97)
FORM = [[1, 2, 3], [7], [8], [9], [10, 11], [12], [13], [14, 15, 16]]
"""What may stand at each place of an answer; then it is complete."""


class Places:
    """A grammar backend whose sources are lists of what may stand at each place."""

    gate: threading.Event | None = None

    def __init__(self, spec: GrammarSpec) -> None: ...

    def load(self, data: bytes) -> Any:
        if self.gate is not None:
            assert self.gate.wait(30)
        places = msgspec.msgpack.decode(data)
        if not places:
            raise ValueError("it has no places")
        return _Grammar(places)

    def compile(self, wanted: Any) -> bytes:
        raise NotImplementedError


class _Grammar:
    def __init__(self, places: list[list[int]]) -> None:
        self._places = places

    def matcher(self) -> _Matcher:
        return _Matcher(self._places)


class _Matcher:
    def __init__(self, places: list[list[int]]) -> None:
        self._places = places
        self._at = 0

    def fill_mask(self, mask: Any) -> None:
        bits = np.zeros(len(mask) * 32, np.uint8)
        bits[self._places[self._at] if self._at < len(self._places) else [EOS]] = 1
        mask[:] = np.packbits(bits, bitorder="little").view("<i4")

    def accept(self, token: int) -> bool:
        good = self._at < len(self._places) and token in self._places[self._at]
        self._at += good
        return good

    def rollback(self, count: int) -> None:
        self._at -= count


def make_engine(**limits: Any) -> Engine:
    grammars = GrammarManager(lambda: SPEC, lambda name, spec: Places(spec))
    drafter = SpeculativeDrafter(limits.pop("speculator", None), grammars, MODEL.vocab_size)
    return Engine(MODEL, grammars=grammars, drafter=drafter, **limits)


def asking(name: str, prompt: Sequence[int], places: Any = FORM, **fields: Any) -> AddRequest:
    grammar = CompiledGrammar("places", msgspec.msgpack.encode(places))
    return make_request(name, prompt, fields.pop("max_tokens", 30), grammar=grammar, **fields)


def ending_with(*end: int, **more: Any) -> Thinking:
    """Reasoning from the first token on, until these come."""
    return Thinking("reasoning", end, (bytes(end),), **more)


def alone(prompt: Sequence[int], places: Sequence[Sequence[int]] = FORM) -> list[int]:
    return generate(MODEL, prompt, len(places), allowed=lambda output: set(places[len(output)]))


@pytest.mark.parametrize("overlapped", [False, True])
def test_an_answer_keeps_to_its_grammar_and_ends_with_it(overlapped: bool) -> None:
    engine = make_engine(overlapped=overlapped)
    engine.add(asking("a", [5, 6]), make_request("free", [5, 6], 20), asking("b", [4]))
    engine.run()
    assert engine.tokens == {"a": alone([5, 6]), "free": generate(MODEL, [5, 6], 20), "b": alone([4])}
    for name in ("a", "b"):
        assert (engine.last[name].finish, engine.last[name].stop_token) == (FinishReason.STOP, None)


def test_forced_tokens_come_in_one_step() -> None:
    engine = make_engine()
    engine.add(asking("a", [5, 6]))
    engine.run()
    assert engine.tokens["a"] == alone([5, 6])
    assert engine.core.stats.forced_tokens == 5
    assert engine.steps <= 5


@pytest.mark.parametrize("overlapped", [False, True])
def test_preemption_and_choices_change_no_constrained_answer(overlapped: bool) -> None:
    engine = make_engine(num_blocks=26, max_num_batched_tokens=9, max_model_len=40, overlapped=overlapped)
    long = [[n, n + 1, n + 2] if n % 3 else [n] for n in range(20)]
    prompts = [[n % 7, *range(10)] for n in range(6)]
    for number, prompt in enumerate(prompts):
        for choice in range(2):
            leader = f"{number}.0" if choice else None
            engine.add(asking(f"{number}.{choice}", prompt, long, leader=leader))
            engine.step()
    engine.run()
    for number, prompt in enumerate(prompts):
        assert engine.tokens[f"{number}.0"] == engine.tokens[f"{number}.1"] == alone(prompt, long)
    assert engine.core.stats.preemptions > 0
    assert engine.core.stats.copied_blocks > 0
    assert engine.core.stats.blocks_held == 0


@pytest.mark.parametrize("overlapped", [False, True])
def test_only_what_follows_the_reasoning_is_constrained(overlapped: bool) -> None:
    engine = make_engine(overlapped=overlapped)
    prompt = [5, 6, 7]
    free = generate(MODEL, prompt, 6)
    engine.add(asking("a", prompt, thinking=ending_with(free[3])))
    engine.run()
    tokens = engine.tokens["a"]
    begins = free.index(free[3]) + 1
    assert tokens[:begins] == free[:begins]
    assert tokens == generate(
        MODEL,
        prompt,
        begins + len(FORM),
        allowed=lambda output: set(FORM[len(output) - begins]) if len(output) >= begins else None,
    )


@pytest.mark.parametrize(
    ("fields", "count", "finish"),
    [
        pytest.param({"max_tokens": 3}, 3, "length", id="length-before-the-end"),
        pytest.param({"max_tokens": 8}, 8, "stop", id="complete-at-the-limit"),
        pytest.param({"params": SamplingParams(stop_token_ids=(9,))}, 4, "stop", id="stop-token"),
    ],
)
def test_other_ends(fields: dict[str, Any], count: int, finish: str) -> None:
    engine = make_engine()
    engine.add(asking("a", [5], **fields))
    engine.run()
    assert engine.tokens["a"] == alone([5])[:count]
    assert engine.last["a"].finish == finish


def test_a_grammar_that_loads_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(Places, "gate", gate)
    engine = make_engine()
    engine.add(asking("waits", [5]), make_request("runs", [5], 10), asking("leaves", [6], [[1]]))
    while "runs" not in engine.last or engine.last["runs"].finish is None:
        engine.step()
    assert engine.core.stats.waiting == 2
    engine.take(engine.core.abort(["leaves"]))
    assert engine.last["leaves"].finish == FinishReason.ABORT
    assert engine.core.has_work
    engine.step()
    assert engine.tokens["waits"] == []
    gate.set()
    engine.run()
    assert engine.tokens["waits"] == alone([5])
    assert (engine.core.stats.waiting, engine.core.stats.running) == (0, 0)


def test_a_grammar_that_cannot_be_loaded_ends_its_request_alone() -> None:
    engine = make_engine()
    engine.add(asking("bad", [5], []), asking("good", [5]))
    engine.run()
    assert engine.last["bad"].finish == FinishReason.ERROR
    assert "it has no places" in (engine.last["bad"].error or "")
    assert engine.tokens["good"] == alone([5])
    engine.core.shutdown()


def test_an_id_is_taken_once_while_its_grammar_loads() -> None:
    engine = make_engine()
    engine.add(asking("a", [5]))
    output = engine.core.add(asking("a", [5]))[0]
    assert "already in use" in (output.error or "")
    engine.run()
    assert engine.tokens["a"] == alone([5])
