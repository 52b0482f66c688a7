"""``LLM``: a model in the caller's process, without a server."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, cast

from llmkit.assemble.engine import build_engine
from llmkit.assemble.front import prepare_hooks
from llmkit.assemble.grammars import grammar_compiler
from llmkit.assemble.model import open_frontend, open_model
from llmkit.config import sources
from llmkit.config.flags import needed
from llmkit.contracts import AddRequest, Finished, RequestContext, SamplingParams, StepOutput, Tokenizer
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import EngineError, RequestError, UsageError
from llmkit.events import PositionLogprobs
from llmkit.fold import ChoiceFold, FoldedChoice
from llmkit.frontend.check import check_prompt
from llmkit.frontend.fields import check_text
from llmkit.frontend.grammars import grammar_spec
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.prepare import Prepared, Preparer
from llmkit.frontend.requests import Attachments, Limits, make_requests
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


@dataclass(frozen=True, slots=True)
class Output:
    """What one prompt gave; the fields of its first choice are its own too."""

    prompt_token_ids: list[int]
    choices: list[Completion]

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
        self._defaults = front.generation_defaults
        self._hooks = prepare_hooks(plugins)
        if config.model.grammar_backend != "auto":
            plugins.registry.get("grammar", config.model.grammar_backend)  # a wrong name ends the start
        built = build_engine(config, opened.files, opened.info, plugins.registry, _no_progress)
        self._limits = Limits.of(built.ready, front, config.model.seed)
        self._grammars = grammar_compiler(
            config, plugins, lambda: grammar_spec(front.tokenizer, front.eos_ids, built.ready.vocab_size)
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
        many = _as_prompts(prompts)
        return self._run([self._encode(prompt) for prompt in many], self._params_for(params, len(many)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Output]:
        """Answer one conversation, or each of several; an output a conversation, in order.

        :raises RequestError: also where the model has no chat template, or it refuses the messages.
        """
        if self._chat is None:
            raise RequestError(
                "the model has no chat template; give one with chat_template=", param="messages"
            )
        conversations = _as_conversations(messages)
        prompts = [
            self._chat.render_ids(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_args=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self._run(prompts, self._params_for(params, len(prompts)))

    # ---- prompts to outputs ----

    def _run(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Output]:
        batch = _Batch(self.tokenizer)
        for prompt_ids, wanted in zip(prompts, params, strict=True):
            check_prompt(prompt_ids, self._limits.vocab_size)
            prepared = self._prepare(prompt_ids, wanted)
            structured = prepared.params.structured
            requests = make_requests(
                prompt_ids,
                prepared.params,
                RequestContext(),
                self._limits,
                prepared.attachments,
                None if structured is None else self._grammars.compile_now(structured),
            )
            batch.take(requests)
        with self._turn:
            if self._engine is None:
                raise EngineError("this LLM was closed")
            return batch.run(self._engine)

    def _prepare(self, prompt_ids: Sequence[int], params: SamplingParams) -> Prepared:
        if not self._hooks and not params.plugin_args:
            return Prepared(params, Attachments())
        return _wait_for(Preparer(self._hooks).run(prompt_ids, params, RequestContext()))

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


class _Batch:
    """The choices of one call, on their way through the engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._requests: list[list[AddRequest]] = []
        self._pipelines: dict[str, OutputPipeline] = {}
        self._folds: dict[str, ChoiceFold] = {}

    def take(self, requests: list[AddRequest]) -> None:
        """The choices of one prompt."""
        self._requests.append(requests)

    def run(self, engine: InprocClient) -> list[Output]:
        """Generate; whatever happens, nothing of it stays in the engine."""
        try:
            for request in itertools.chain.from_iterable(self._requests):
                self._enter(request, engine)
            for output in engine.outputs():
                self._route(output, engine)
        finally:
            engine.abort(list(self._pipelines))
        if self._pipelines:
            raise EngineError(f"the engine left {len(self._pipelines)} choices without an end")
        return [self._output(requests) for requests in self._requests]

    def _enter(self, request: AddRequest, engine: InprocClient) -> None:
        fold = self._folds[request.request_id] = ChoiceFold()
        if request.max_tokens == 0:
            fold.add(Finished(FinishReason.LENGTH))
            return
        pipeline = OutputPipeline(self._tokenizer, request.prompt_ids, request.params)
        self._pipelines[request.request_id] = pipeline
        engine.add(request)

    def _route(self, output: StepOutput, engine: InprocClient) -> None:
        pipeline = self._pipelines.get(output.request_id)
        if pipeline is None:  # ended by a stop string, or left from a call that was interrupted
            return
        for event in pipeline.feed(output):
            self._folds[output.request_id].add(event)
        if pipeline.finished:
            del self._pipelines[output.request_id]
        if pipeline.abort_needed:
            engine.abort([output.request_id])

    def _output(self, requests: list[AddRequest]) -> Output:
        choices = [
            _completion(self._folds[request.request_id].result(), request.params) for request in requests
        ]
        return Output(requests[0].prompt_ids, choices)


def _completion(choice: FoldedChoice, params: SamplingParams) -> Completion:
    """:raises EngineError: the choice ended with an error."""
    if choice.finish.reason is FinishReason.ERROR:
        raise EngineError(choice.finish.error or "the engine gave no reason")
    return Completion(
        text=choice.text,
        token_ids=choice.token_ids,
        finish_reason=choice.finish.reason,
        stop_reason=choice.finish.stop_reason,
        logprobs=None if params.logprobs is None else choice.logprobs,
    )


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
