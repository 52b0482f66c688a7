"""Beam search: which continuations stay open, which are complete, and when the search has ended.

The rules are transformers' (``GenerationMixin._beam_search``), so that sequences and scores are too. Each
round the engine gives every open beam's likeliest next tokens: one-token requests whose prompt is the prompt
and the beam, and whose KV the prefix cache has but for the last block.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from llmkit.contracts import AddRequest, PositionLogprobs, SamplingParams, StepOutput, TokenLogprob
from llmkit.types import BeamSearch, FinishReason


@dataclass(frozen=True, slots=True)
class Beam:
    """One continuation of the prompt."""

    positions: tuple[PositionLogprobs, ...] = ()
    """Its tokens, with the alternatives there were to each."""
    logprob: float = 0.0
    """Summed over its tokens."""
    finish: FinishReason | None = None
    """Why it is complete."""
    score: float = 0.0
    """What complete beams are compared by."""

    @property
    def token_ids(self) -> list[int]:
        return [position.sampled.token_id for position in self.positions]


class _Step(NamedTuple):
    """A token that may follow an open beam; they sort from the best on."""

    cost: float
    """Less the logprob of beam and token."""
    place: int
    """The beam's, in ``open``."""
    token_id: int
    token: TokenLogprob


class Beams:
    """One search; owns its open and its complete beams."""

    def __init__(
        self, search: BeamSearch, end_ids: Sequence[int], max_tokens: int, min_tokens: int = 0, shown: int = 0
    ) -> None:
        """``max_tokens`` is at least 1; ends count from the token after ``min_tokens`` on; ``shown``
        alternatives of each token are kept."""
        self._search = search
        self._ends = frozenset(end_ids)
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._shown = shown
        self._complete: list[Beam] = []
        """Best first, at most ``width``."""
        self.open = [Beam()]
        """Best first, at most ``width``; all of one length."""
        self.ended = False

    @property
    def alternatives(self) -> int:
        """How many of the likeliest next tokens of each open beam :meth:`advance` needs: even if every end is
        likelier, ``width`` others are among them; and those that are shown."""
        return max(self._search.width + len(self._ends), self._shown)

    def advance(self, likeliest: Sequence[Sequence[TokenLogprob]]) -> None:
        """One round: the likeliest next tokens of each open beam, in the order of ``open``."""
        width, length = self._search.width, len(self.open[0].positions) + 1
        steps = self._steps(likeliest, length)
        ending = [step for step in steps[:width] if self._finish(step, length) is not None]
        going_on = itertools.islice((step for step in steps if self._finish(step, length) is None), width)
        self._complete_some([self._grow(step, likeliest, length) for step in ending])
        self.open = [self._grow(step, likeliest, length) for step in going_on]
        self.ended = not self.open or not self._may_improve(length)

    def best(self, count: int) -> list[Beam]:
        """The best complete beams once the search has ended."""
        assert self.ended, "the search goes on"
        return self._complete[:count]

    def _steps(self, likeliest: Sequence[Sequence[TokenLogprob]], length: int) -> list[_Step]:
        """Every way to go on, best first."""
        masked = self._ends if length <= self._min_tokens else frozenset[int]()
        return sorted(
            _Step(-(beam.logprob + token.logprob), place, token.token_id, token)
            for place, beam in enumerate(self.open)
            for token in likeliest[place]
            if token.token_id not in masked
        )

    def _finish(self, step: _Step, length: int) -> FinishReason | None:
        if step.token_id in self._ends:
            return FinishReason.STOP
        return FinishReason.LENGTH if length == self._max_tokens else None

    def _grow(self, step: _Step, likeliest: Sequence[Sequence[TokenLogprob]], length: int) -> Beam:
        shown = tuple(likeliest[step.place][: self._shown])
        positions = (*self.open[step.place].positions, PositionLogprobs(step.token, shown))
        return Beam(positions, -step.cost, self._finish(step, length), self._score(-step.cost, length))

    def _complete_some(self, leading: Sequence[Beam]) -> None:
        """Only what would have stayed open may become complete."""
        merged = sorted([*self._complete, *leading], key=lambda beam: -beam.score)
        self._complete = merged[: self._search.width]

    def _may_improve(self, length: int) -> bool:
        if len(self._complete) < self._search.width:
            return True
        if self._search.early_stopping is True:
            return False
        if self._search.early_stopping == "never" and self._search.length_penalty > 0:
            length = self._max_tokens  # what the best open one would gain most at
        return self._score(self.open[0].logprob, length) > self._complete[-1].score

    def _score(self, logprob: float, length: int) -> float:
        weight: float = length**self._search.length_penalty
        return logprob / weight


class BeamRun:
    """One request's search as the engine sees it; the server and ``LLM`` drive it."""

    def __init__(self, request: AddRequest, params: SamplingParams, vocab_size: int) -> None:
        """``request`` is the whole one; ``max_tokens`` in it is at least 1. ``params`` are the client's."""
        assert params.beam_search is not None
        ends = tuple(dict.fromkeys((*request.eos_ids, *params.stop_token_ids)))
        self._request = request
        self._eos_ids = frozenset(request.eos_ids)
        self._with_logprobs = params.logprobs is not None
        self._wanted = params.n
        self._beams = Beams(
            params.beam_search, ends, request.max_tokens, request.params.min_tokens, params.logprobs or 0
        )
        alternatives = min(self._beams.alternatives, vocab_size)
        self._one_token = SamplingParams(temperature=0.0, max_tokens=1, logprobs=alternatives)

    @property
    def ended(self) -> bool:
        return self._beams.ended

    def requests(self) -> list[AddRequest]:
        """One for each open beam."""
        whole = self._request
        length = len(self._beams.open[0].positions)
        return [
            msgspec.structs.replace(
                whole,
                request_id=f"{whole.request_id}-{length}-{place}",
                prompt_ids=[*whole.prompt_ids, *beam.token_ids],
                params=self._one_token,
                max_tokens=1,
                eos_ids=(),
            )
            for place, beam in enumerate(self._beams.open)
        ]

    def advance(self, outputs: Sequence[StepOutput]) -> None:
        """With what each of :meth:`requests` gave, in that order."""
        likeliest = []
        for output in outputs:
            assert output.logprobs, "logprobs were asked for"
            likeliest.append(output.logprobs[0].top)
        self._beams.advance(likeliest)

    def results(self) -> list[StepOutput]:
        """The choices, best first, as one output each."""
        return [self._result(beam) for beam in self._beams.best(self._wanted)]

    def _result(self, beam: Beam) -> StepOutput:
        ids = beam.token_ids
        logprobs = list(beam.positions) if self._with_logprobs else None
        by_stop_token = beam.finish is FinishReason.STOP and ids[-1] not in self._eos_ids
        return StepOutput(
            self._request.request_id, ids, logprobs, beam.finish, ids[-1] if by_stop_token else None
        )
