"""The front's side of requests in a mix: what clients get, and when they go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from llmkit.contracts import AddRequest, Finished, FinishReason, StepOutput, Tokenizer
from llmkit.events import Content
from llmkit.fold import ChoiceFold, FoldedChoice
from llmkit.frontend.beam import BeamRun
from llmkit.frontend.output import OutputPipeline, params_of_choice
from tests.differential.model import VOCAB_SIZE
from tests.differential.watch import Watch

if TYPE_CHECKING:
    from tests.differential.asks import Ask


@dataclass(frozen=True)
class Arrival:
    """When a request comes and when its client goes."""

    step: int
    ask: Ask
    leaves: int | Literal["prefill"] | None = None
    """After so many tokens, or while its prompt is half computed; None stays."""
    priority: int = 0
    caller: str = ""
    abort_lag: int = 0
    """Steps until the engine hears of a stop string or of a client that has gone."""


@dataclass(frozen=True)
class Outcome:
    """What a client got: of a request, its choices."""

    choices: list[FoldedChoice]
    left: bool = False
    """It went away before the end."""


@dataclass
class Client:
    """One request whose choices are sampled side by side. Owns their pipelines and what they gave."""

    arrival: Arrival
    requests: list[AddRequest]
    tokenizer: Tokenizer
    left: bool = False
    left_in_prefill: bool = False
    cached: int = 0
    """Choices that found some of their prompt in the cache."""
    cut: int = 0
    """Choices that a stop string ended."""
    _pipelines: dict[str, OutputPipeline] = field(default_factory=dict)
    _folds: dict[str, ChoiceFold] = field(default_factory=dict)
    _aborts: list[tuple[int, str]] = field(default_factory=list)
    """(step at which the engine hears of it, request id)"""

    def begin(self) -> list[AddRequest]:
        """What the engine gets first."""
        for request in self.requests:
            params = params_of_choice(self.arrival.ask.params, request.choice)
            self._pipelines[request.request_id] = OutputPipeline(self.tokenizer, request.prompt_ids, params)
            self._folds[request.request_id] = ChoiceFold()
        return self.requests

    def take(self, output: StepOutput, step: int) -> list[AddRequest]:
        """Read one output; returns what the engine is to do next."""
        pipeline = self._pipelines[output.request_id]
        if pipeline.finished or self.left:
            return []
        for event in pipeline.feed(output):
            self._folds[output.request_id].add(event)
        if pipeline.finished:
            self.cached += pipeline.cached_tokens > 0
        if pipeline.abort_needed:
            self.cut += 1
            self._aborts.append((step + self.arrival.abort_lag, output.request_id))
        return []

    def aborts(self, step: int, watch: Watch) -> list[str]:
        """Requests that the engine hears of now that nobody wants them."""
        if not self.left and self._leaves(watch):
            self.left = True
            self._aborts += [(step + self.arrival.abort_lag, request.request_id) for request in self.requests]
        due = [name for when, name in self._aborts if when <= step]
        self._aborts = [abort for abort in self._aborts if abort[0] > step]
        return due

    @property
    def used_up(self) -> int:
        """Choices whose reasoning was ended for them."""
        count = 0
        for request in self.requests:
            thinking = request.thinking
            if (
                thinking is None
                or thinking.budget is None
                or not self._pipelines[request.request_id].finished
            ):
                continue
            tokens = self._folds[request.request_id].result().token_ids[thinking.budget :]
            count += tuple(tokens[: len(thinking.end)]) == thinking.end
        return count

    def outcome(self) -> Outcome:
        choices = []
        for name, pipeline in self._pipelines.items():
            if not pipeline.finished:
                assert self.left, f"{self.arrival.ask.name}: {name} got no end"
                for event in pipeline.fail("the client left"):
                    if not isinstance(event, Content):  # held back, and perhaps part of a stop string
                        self._folds[name].add(event)
            choices.append(self._folds[name].result())
        return Outcome(choices, self.left)

    def _leaves(self, watch: Watch) -> bool:
        if self.arrival.leaves is None:
            return False
        if self.arrival.leaves == "prefill":
            self.left_in_prefill = any(request.request_id in watch.in_prefill for request in self.requests)
            return self.left_in_prefill
        first = next(iter(self._pipelines.values()), None)
        return first is not None and first.num_tokens >= self.arrival.leaves


class BeamClient(Client):
    """One beam search, driven by one-token requests; its client stays until the end."""

    def begin(self) -> list[AddRequest]:
        (request,) = self.requests
        self._search = BeamRun(request, self.arrival.ask.params, VOCAB_SIZE)
        return self._next_round()

    def take(self, output: StepOutput, step: int) -> list[AddRequest]:
        assert output.finish is FinishReason.LENGTH, output
        self.cached += output.cached_tokens > 0
        self._round[output.request_id] = output
        outputs = [given for given in self._round.values() if given is not None]
        if len(outputs) < len(self._round):
            return []
        self._search.advance(outputs)
        return [] if self._search.ended else self._next_round()

    def outcome(self) -> Outcome:
        assert self._search.ended, "a beam search got no end"
        return Outcome([_folded(result) for result in self._search.results()])

    def _leaves(self, watch: Watch) -> bool:
        return False

    def _next_round(self) -> list[AddRequest]:
        self.requests = self._search.requests()
        self._round: dict[str, StepOutput | None] = {each.request_id: None for each in self.requests}
        return self.requests


def _folded(result: StepOutput) -> FoldedChoice:
    assert result.finish is not None
    return FoldedChoice(
        "", result.token_ids, result.logprobs or [], Finished(result.finish, result.stop_token)
    )
