"""The prompts of one ``LLM`` call on their way through the engine, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llmkit.contracts import AddRequest, Finished, SamplingParams, StepOutput, Tokenizer
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import EngineError, RequestError
from llmkit.events import PositionLogprobs
from llmkit.fold import ChoiceFold, FoldedCall, FoldedChoice, fold
from llmkit.frontend.beam import BeamRun
from llmkit.frontend.best_of import best_choices
from llmkit.frontend.output import UNSATISFIABLE, OutputPipeline, params_of_choice
from llmkit.frontend.parsing import AnswerParsers
from llmkit.frontend.stages import Stages
from llmkit.types import FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token id that ended it."""
    logprobs: list[PositionLogprobs] | None
    """One a token; None where they were not asked for."""
    reasoning: str = ""
    """Of a conversation's answer, where the model's way of reasoning is known."""
    tool_calls: tuple[FoldedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What one prompt gave; the fields of its first choice are its own too."""

    prompt_token_ids: list[int]
    """As the model got them: truncated where that was asked for."""
    choices: list[Completion]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """One a prompt token, None for the first; None where they were not asked for."""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> list[PositionLogprobs] | None:
        return self.choices[0].logprobs

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[FoldedCall, ...]:
        return self.choices[0].tool_calls


class Job(Protocol):
    """One prompt on its way through the engine."""

    def begin(self) -> list[AddRequest]:
        """What the engine is to do first; empty where there is nothing to do."""

    def feed(self, output: StepOutput) -> tuple[list[AddRequest], list[str]]:
        """Requests to add and to abort after one output of this job's."""

    def result(self) -> Output:
        """:raises EngineError: a choice ended with an error, or none came."""


class Batch:
    """The jobs of one call; owns which request of the engine belongs to which."""

    def __init__(self, engine: InprocClient, jobs: Sequence[Job]) -> None:
        self._engine = engine
        self._jobs = jobs
        self._open: dict[str, Job] = {}

    def run(self) -> list[Output]:
        """Generate; whatever happens, nothing of it stays in the engine."""
        try:
            for job in self._jobs:
                self._add(job, job.begin())
            for output in self._engine.outputs():
                self._route(output)
        finally:
            self._engine.abort(list(self._open))
        if self._open:
            raise EngineError(f"the engine left {len(self._open)} choices without an end")
        return [job.result() for job in self._jobs]

    def _add(self, job: Job, requests: Sequence[AddRequest]) -> None:
        for request in requests:
            self._open[request.request_id] = job
            self._engine.add(request)

    def _route(self, output: StepOutput) -> None:
        job = self._open.get(output.request_id)
        if job is None:  # ended by a stop string, or left from a call that was interrupted
            return
        if output.finish is not None:
            del self._open[output.request_id]
        requests, ended = job.feed(output)
        self._add(job, requests)
        if ended:
            for request_id in ended:
                self._open.pop(request_id, None)
            self._engine.abort(ended)


class SamplingJob:
    """Choices of a prompt; owns their pipelines and what they gave."""

    def __init__(
        self,
        requests: list[AddRequest],
        params: SamplingParams,
        tokenizer: Tokenizer,
        parsers: AnswerParsers | None,
        stages: Stages,
    ) -> None:
        self._requests = requests
        self._params = params
        self._folds = {request.request_id: ChoiceFold() for request in requests}
        self._pipelines = {
            request.request_id: OutputPipeline(
                tokenizer,
                request.prompt_ids,
                params_of_choice(params, request.choice),
                parsers,
                stages.chain(),
            )
            for request in requests
        }

    def begin(self) -> list[AddRequest]:
        if self._requests[0].max_tokens:
            return self._requests
        sent = 0 if self._params.prompt_logprobs is None else 1
        for request in self._requests[sent:]:
            self._folds[request.request_id].add(Finished(FinishReason.LENGTH))
        return self._requests[:sent]

    def feed(self, output: StepOutput) -> tuple[list[AddRequest], list[str]]:
        pipeline = self._pipelines[output.request_id]
        for event in pipeline.feed(output):
            self._folds[output.request_id].add(event)
        return [], [output.request_id] if pipeline.abort_needed else []

    def result(self) -> Output:
        choices = [fold.result() for fold in self._folds.values()]
        for choice in choices:
            _check_end(choice.finish)
        best = list(range(len(choices)))
        if len(choices) > self._params.n:
            best = best_choices([choice.logprobs for choice in choices], self._params.n)
        first = choices[0].prompt_logprobs
        return Output(
            self._requests[0].prompt_ids,
            [_completion(choices[index], self._params) for index in best],
            None if first is None else [None, *first],
        )


class BeamJob:
    """A beam search; owns the outputs of the round under way."""

    def __init__(
        self,
        request: AddRequest,
        params: SamplingParams,
        tokenizer: Tokenizer,
        parsers: AnswerParsers | None,
        stages: Stages,
        vocab_size: int,
    ) -> None:
        self._parsers = parsers
        self._stages = stages
        self._request = request
        self._params = params
        self._tokenizer = tokenizer
        self._search = BeamRun(request, params, vocab_size) if request.max_tokens else None
        self._round: dict[str, StepOutput | None] = {}

    def begin(self) -> list[AddRequest]:
        return [] if self._search is None else self._begin_round(self._search)

    def feed(self, output: StepOutput) -> tuple[list[AddRequest], list[str]]:
        assert self._search is not None, "an output of nothing"
        if output.finish is not FinishReason.LENGTH:
            _check_end(Finished(FinishReason.ERROR, error=output.error))
        self._round[output.request_id] = output
        outputs = [given for given in self._round.values() if given is not None]
        if len(outputs) < len(self._round):
            return [], []
        self._search.advance(outputs)
        return ([] if self._search.ended else self._begin_round(self._search)), []

    def result(self) -> Output:
        if self._search is None:
            nothing = FoldedChoice("", [], [], Finished(FinishReason.LENGTH))
            folds = [nothing] * self._params.n
        else:
            folds = [self._fold(result) for result in self._search.results()]
        return Output(self._request.prompt_ids, [_completion(choice, self._params) for choice in folds])

    def _begin_round(self, search: BeamRun) -> list[AddRequest]:
        requests = search.requests()
        self._round = dict.fromkeys(request.request_id for request in requests)
        return requests

    def _fold(self, result: StepOutput) -> FoldedChoice:
        prompt_ids = self._request.prompt_ids
        pipeline = OutputPipeline(
            self._tokenizer, prompt_ids, self._params, self._parsers, self._stages.chain()
        )
        folded = fold(pipeline.feed(result))
        _check_end(folded.finish)
        return folded


def _completion(choice: FoldedChoice, params: SamplingParams) -> Completion:
    return Completion(
        text=choice.text,
        token_ids=choice.token_ids,
        finish_reason=choice.finish.reason,
        stop_reason=choice.finish.stop_reason,
        logprobs=None if params.logprobs is None else choice.logprobs,
        reasoning=choice.reasoning,
        tool_calls=choice.calls,
    )


def _check_end(finish: Finished) -> None:
    """:raises EngineError: the choice ended with an error. :raises RequestError: of the request's own."""
    if finish.error_code == UNSATISFIABLE:
        raise RequestError(finish.error or "nothing satisfies the request", code=UNSATISFIABLE)
    if finish.reason is FinishReason.ERROR:
        raise EngineError(finish.error or "the engine gave no reason")
