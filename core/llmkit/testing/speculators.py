"""The compliance suite of speculators, over a model of integers that can draft for itself."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from llmkit.assemble.draft import ModelDrafts
from llmkit.config import Config, SpeculationConfig
from llmkit.contracts import DraftEngine, DraftRequest, EngineReady, SamplingParams
from llmkit.contracts.speculator import Speculator, SpeculatorSpec
from llmkit.engine.core import EngineCore
from llmkit.engine.drafts import SpeculativeDrafter
from llmkit.engine.grammars import GrammarManager
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.testing.kv_model import KVModelExecutor
from llmkit.testing.policies import (
    CONTEXT,
    MODEL,
    ByOrder,
    check_tokens,
    make_requests,
    scheduler_spec,
    simulate,
)

NUM_DRAFTS = 4


class SpeculatorContract:
    """What every speculator must hold to."""

    def make_speculator(self, spec: SpeculatorSpec) -> Speculator:
        """A fresh speculator, the way its factory makes it."""
        raise NotImplementedError

    def speculation(self) -> SpeculationConfig:
        """The settings it is made for; ``draft_model`` may be anything, the suite's model stands for it."""
        return SpeculationConfig(num_speculative_tokens=NUM_DRAFTS)

    def spec(self) -> SpeculatorSpec:
        return SpeculatorSpec(
            config=Config(speculation=self.speculation()),
            vocab_size=MODEL.vocab_size,
            max_model_len=CONTEXT,
            open_draft=open_draft,
        )

    def test_a_proposal_is_no_longer_than_of_use_and_within_the_vocabulary(self) -> None:
        speculator = self.make_speculator(self.spec())
        for requests in _steps(histories(6)):
            for request, drafts in zip(requests, speculator.propose(requests), strict=True):
                assert len(drafts) <= min(request.most, self.speculation().num_speculative_tokens)
                assert all(type(token) is int and 0 <= token < MODEL.vocab_size for token in drafts)
        speculator.close()

    def test_nobody_gets_nothing(self) -> None:
        speculator = self.make_speculator(self.spec())
        assert list(speculator.propose([])) == []
        request = histories(1)[0]
        assert list(speculator.propose([replace(request, most=0)])) == [[]]
        speculator.close()

    def test_it_changes_nothing_that_it_is_shown(self) -> None:
        speculator = self.make_speculator(self.spec())
        for requests in _steps(histories(3)):
            before = [list(request.token_ids) for request in requests]
            for drafts in speculator.propose(requests):
                drafts.append(0)
            assert [list(request.token_ids) for request in requests] == before
        speculator.close()

    def test_the_same_past_gives_the_same_proposals(self) -> None:
        first, second = self.make_speculator(self.spec()), self.make_speculator(self.spec())
        for requests in _steps(histories(4)):
            assert first.propose(requests) == second.propose(requests)
        first.close()
        second.close()

    def test_a_forgotten_id_may_come_again_with_another_text(self) -> None:
        speculator, fresh = self.make_speculator(self.spec()), self.make_speculator(self.spec())
        old, new = histories(2)
        for requests in _steps([old]):
            speculator.propose(requests)
        speculator.forget([old.request_id, "nobody"])
        for requests in _steps([replace(new, request_id=old.request_id)]):
            assert speculator.propose(requests) == fresh.propose(requests)
        speculator.close()
        fresh.close()

    def test_no_request_gets_other_tokens_for_its_drafts(self) -> None:
        requests = make_requests(24)
        drafter = SpeculativeDrafter(self.make_speculator(self.spec()), _no_grammars(), MODEL.vocab_size)
        spec = replace(scheduler_spec(ByOrder()), drafter=drafter)
        scheduler = ContinuousScheduler(spec)
        check_tokens(requests, simulate(scheduler, spec, requests))
        stats = scheduler.stats()
        assert stats.preemptions > 0, "blocks were meant to run out"
        assert stats.draft_tokens > 0, "something was meant to be proposed"
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)
        drafter.close()

    def test_closing_twice_is_closing_once(self) -> None:
        speculator = self.make_speculator(self.spec())
        speculator.close()
        speculator.close()


def histories(count: int) -> list[DraftRequest]:
    """Requests with whole texts, in which earlier parts come again and some of which begin alike."""
    source = random.Random(count)
    head = [source.randrange(MODEL.vocab_size) for _ in range(10)]
    requests = []
    for number in range(count):
        own = source.choices(range(MODEL.vocab_size), k=12)
        text = [*head[: source.randrange(10)], *own, *own[: source.randrange(4, 12)], number, *own][:CONTEXT]
        requests.append(
            DraftRequest(
                request_id=f"request-{number}",
                token_ids=text,
                num_prompt=5,
                most=source.randrange(1, 2 * NUM_DRAFTS),
                params=SamplingParams(temperature=float(number % 2)),
                seed=number,
                choice=0,
            )
        )
    return requests


def _steps(requests: Sequence[DraftRequest]) -> Iterable[list[DraftRequest]]:
    """The requests as they grow, a token or two a step, each from its prompt to its end."""
    lengths = [request.num_prompt for request in requests]
    while any(length <= len(r.token_ids) for length, r in zip(lengths, requests, strict=True)):
        yield [
            replace(request, token_ids=list(request.token_ids[:length]))
            for length, request in zip(lengths, requests, strict=True)
            if length <= len(request.token_ids)
        ]
        lengths = [length + 1 + (index + length) % 2 for index, length in enumerate(lengths)]


def _no_grammars() -> GrammarManager:
    def nothing(*given: Any) -> Any:
        raise AssertionError("no request here has a grammar")

    return GrammarManager(nothing, nothing)


def open_draft(reference: str) -> DraftEngine:
    """The model of integers itself: every one of its drafts is right."""
    spec = scheduler_spec(ByOrder())
    executor = KVModelExecutor(MODEL)
    executor.allocate(spec.layout, lambda phase, fraction: None)
    ready = EngineReady(
        max_model_len=CONTEXT,
        vocab_size=MODEL.vocab_size,
        num_blocks=spec.layout.num_blocks,
        block_size=spec.block_size,
        kv_bytes=spec.layout.total_bytes,
        weight_bytes=0,
        choices=(),
    )
    return ModelDrafts(EngineCore(ContinuousScheduler(spec), executor), ready, MODEL.vocab_size)


__all__ = ["NUM_DRAFTS", "SpeculatorContract", "histories", "open_draft"]
