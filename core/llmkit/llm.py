"""``LLM``: a model in the caller's process, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from llmkit.assemble.engine import build_engine
from llmkit.assemble.front import prepare_hooks, processor_checks
from llmkit.assemble.grammars import grammar_compiler
from llmkit.assemble.model import open_frontend, open_model
from llmkit.assemble.model_hooks import model_hooks
from llmkit.config import sources
from llmkit.config.flags import needed
from llmkit.contracts import (
    AddRequest,
    Finished,
    FoldedCall,
    Parsing,
    RequestContext,
    SamplingParams,
    StepOutput,
    Tokenizer,
    read_tools,
)
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import EngineError, RequestError, UsageError
from llmkit.events import PositionLogprobs
from llmkit.fold import ChoiceFold, FoldedChoice, fold
from llmkit.frontend.beam import BeamRun
from llmkit.frontend.best_of import best_choices
from llmkit.frontend.check import check_prompt
from llmkit.frontend.fields import check_text
from llmkit.frontend.grammars import grammar_spec
from llmkit.frontend.output import OutputPipeline, params_of_choice
from llmkit.frontend.parsing import AnswerParsers, Formats
from llmkit.frontend.prepare import Prepared, Preparer
from llmkit.frontend.requests import Attachments, Limits, bad_word_ids, make_requests, truncated
from llmkit.messages import CallTarget
from llmkit.plugins import load_plugins
from llmkit.types import FinishReason

T = TypeVar("T")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]


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


class LLM:
    """A model ready to generate. Owns its engine; calls from several threads take turns.

    ``model`` is what ``llmkit serve`` takes; keyword arguments are its flags with underscores
    (``max_model_len=2048``), over ``LLMKIT_*`` variables. Results equal the server's. Use it as a
    context manager, or call :meth:`close`.
    """

    def __init__(self, model: str | None = None, **overrides: Any) -> None:
        """Load the model; takes as long as a server's start.

        :raises UsageError: no setting has that name, or its value is not allowed.
        :raises StartupError: the model cannot be served here.
        """
        config = sources.load({"model": model, **overrides}, os.environ).config
        plugins = load_plugins(config.plugins, needed(config))
        opened = open_model(config, plugins.registry, _no_progress)
        front = open_frontend(config, opened, plugins.registry)
        self.tokenizer: Tokenizer = front.tokenizer
        self._chat = front.chat
        self._formats = front.formats or Formats(front.tokenizer)
        self._defaults = front.generation_defaults
        self._hooks = prepare_hooks(plugins)
        self._processors = processor_checks(plugins)
        if config.model.grammar_backend != "auto":
            plugins.registry.get("grammar", config.model.grammar_backend)  # a wrong name ends the start
        built = build_engine(
            config, opened.files, opened.info, plugins.registry, _no_progress, model_hooks(plugins)
        )
        self._limits = Limits.of(built.ready, front, config.model.seed)
        self._grammars = grammar_compiler(
            config,
            plugins,
            lambda: grammar_spec(front.tokenizer, front.eos_ids, built.ready.vocab_size, front.formats),
        )
        self._turn = threading.RLock()
        self._engine: InprocClient | None = InprocClient(built.core, built.ready)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the engine and its workers; idempotent."""
        with self._turn:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()
                self._grammars.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Complete each prompt (text, or token ids); an output a prompt, in order.

        One ``params`` is for all, a list has one each; None takes the model's own sampling defaults.

        :raises RequestError: a prompt or parameter is wrong; nothing was generated.
        :raises EngineError: the engine failed.
        """
        many = [_Prompt(self._encode(prompt)) for prompt in _as_prompts(prompts)]
        return self._run(many, self._params_for(params, len(many)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Output]:
        """Answer one conversation, or each of several; an output a conversation, in order.

        ``tools`` and ``tool_choice`` are as the server takes them.

        :raises RequestError: also where the model has no chat template, or it refuses the messages.
        """
        if self._chat is None:
            raise RequestError(
                "the model has no chat template; give one with chat_template=", param="messages"
            )
        asked = read_tools(tools, tool_choice)
        template_args = dict(chat_template_kwargs or {})
        shared: dict[str, Any] = {
            "tools": tools if asked.tools else None,
            "continue_final_message": continue_final_message,
            "template_args": template_args,
        }
        prompts = []
        for conversation in _as_conversations(messages):
            text = self._chat.render(conversation, add_generation_prompt=add_generation_prompt, **shared)
            parsing = Parsing(
                tools=asked.tools,
                calls=asked.calls,
                parallel=parallel_tool_calls,
                prompt_tail=self._chat.opening(text, conversation, **shared),
                template_args=template_args,
            )
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            prompts.append(_Prompt(ids, self._formats.answer(parsing)))
        return self._run(prompts, self._params_for(params, len(prompts)))

    def reset_prefix_cache(self) -> None:
        """Forget the KV of every earlier prompt."""
        self._call("engine", "reset_prefix_cache")

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        """Call a method that a plugin registered for the workers; an answer a rank.

        :raises EngineError: no plugin registered it, or it failed.
        """
        answers: list[Any] = self._call("workers", method, *args)
        return answers

    def _call(self, target: CallTarget, method: str, *args: Any) -> Any:
        with self._turn:
            return self._running().call(target, method, *args)

    def _running(self) -> InprocClient:
        if self._engine is None:
            raise EngineError("this LLM was closed")
        return self._engine

    # ---- prompts to outputs ----

    def _run(self, prompts: Sequence[_Prompt], params: Sequence[SamplingParams]) -> list[Output]:
        jobs = [self._job(*asked) for asked in zip(prompts, params, strict=True)]
        with self._turn:
            return _Batch(self._running(), jobs).run()

    def _job(self, prompt: _Prompt, params: SamplingParams) -> _Job:
        check_prompt(prompt.ids, self._limits.vocab_size)
        prompt_ids = truncated(prompt.ids, params, self._limits)
        parsers = prompt.parsers
        if parsers is not None:
            params = parsers.constrained(params)
        prepared = self._prepare(prompt_ids, params)
        params = prepared.params
        words = bad_word_ids(self.tokenizer, params.bad_words, self._limits.vocab_size)
        structured = params.structured
        grammar = None if structured is None else self._grammars.compile_now(structured)
        if grammar is not None and parsers is not None:
            grammar = parsers.behind_reasoning(grammar)
        attachments = dataclasses.replace(prepared.attachments, bad_words=words, grammar=grammar)
        requests = make_requests(prompt_ids, params, RequestContext(), self._limits, attachments)
        if params.beam_search is not None:
            return _BeamJob(requests[0], params, self.tokenizer, parsers, self._limits.vocab_size)
        return _SamplingJob(requests, params, self.tokenizer, parsers)

    def _prepare(self, prompt_ids: Sequence[int], params: SamplingParams) -> Prepared:
        if not self._hooks and not params.plugin_args:
            return Prepared(params, Attachments())
        preparer = Preparer(self._hooks, processors=self._processors)
        return _wait_for(preparer.run(prompt_ids, params, RequestContext()))

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        check_text("prompt", prompt)
        return self.tokenizer.encode(prompt)

    def _params_for(
        self, params: SamplingParams | Sequence[SamplingParams] | None, prompts: int
    ) -> Sequence[SamplingParams]:
        if params is None:
            defaults = {name: value for name, value in self._defaults.items() if name != "max_tokens"}
            params = SamplingParams(**defaults)
        if isinstance(params, SamplingParams):
            return [params] * prompts
        if len(params) != prompts:
            raise UsageError(f"{len(params)} SamplingParams for {prompts} prompts; give one, or one a prompt")
        return params


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: Sequence[int]
    parsers: AnswerParsers | None = None
    """What its answers are parsed with."""


class _Job(Protocol):
    """One prompt on its way through the engine."""

    def begin(self) -> list[AddRequest]:
        """What the engine is to do first; empty where there is nothing to do."""

    def feed(self, output: StepOutput) -> tuple[list[AddRequest], list[str]]:
        """Requests to add and to abort after one output of this job's."""

    def result(self) -> Output:
        """:raises EngineError: a choice ended with an error, or none came."""


class _Batch:
    """The jobs of one call; owns which request of the engine belongs to which."""

    def __init__(self, engine: InprocClient, jobs: Sequence[_Job]) -> None:
        self._engine = engine
        self._jobs = jobs
        self._open: dict[str, _Job] = {}

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

    def _add(self, job: _Job, requests: Sequence[AddRequest]) -> None:
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


class _SamplingJob:
    """Choices of a prompt; owns their pipelines and what they gave."""

    def __init__(
        self,
        requests: list[AddRequest],
        params: SamplingParams,
        tokenizer: Tokenizer,
        parsers: AnswerParsers | None,
    ) -> None:
        self._requests = requests
        self._params = params
        self._folds = {request.request_id: ChoiceFold() for request in requests}
        self._pipelines = {
            request.request_id: OutputPipeline(
                tokenizer, request.prompt_ids, params_of_choice(params, request.choice), parsers
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


class _BeamJob:
    """A beam search; owns the outputs of the round under way."""

    def __init__(
        self,
        request: AddRequest,
        params: SamplingParams,
        tokenizer: Tokenizer,
        parsers: AnswerParsers | None,
        vocab_size: int,
    ) -> None:
        self._parsers = parsers
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
        return fold(OutputPipeline(self._tokenizer, prompt_ids, self._params, self._parsers).feed(result))


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
    """:raises EngineError: the choice ended with an error."""
    if finish.reason is FinishReason.ERROR:
        raise EngineError(finish.error or "the engine gave no reason")


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Several prompts, or one: text, or a sequence that begins with a number."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast("Sequence[int]", prompts)]
    return cast("Sequence[Prompt]", prompts)


def _as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return cast("Sequence[Sequence[Message]]", messages)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where the caller's thread runs an event loop (a notebook)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _no_progress(phase: str, fraction: float) -> None:
    """Nobody watches."""
