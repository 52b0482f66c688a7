"""``LLM``: a model in the caller's process, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar, cast

from llmkit.assemble.engine import build_engine
from llmkit.assemble.front import prepare_hooks, processor_checks
from llmkit.assemble.grammars import check_grammar_backend, grammar_compiler
from llmkit.assemble.model import open_frontend, open_model
from llmkit.assemble.model_hooks import model_hooks
from llmkit.config import sources
from llmkit.config.flags import needed
from llmkit.contracts import Parsing, RequestContext, SamplingParams, Tokenizer, read_tools
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import EngineError, RequestError, UsageError
from llmkit.frontend.check import check_prompt
from llmkit.frontend.fields import check_text
from llmkit.frontend.grammars import grammar_spec
from llmkit.frontend.parsing import AnswerParsers, Formats, thinking_of
from llmkit.frontend.prepare import Prepared, Preparer
from llmkit.frontend.requests import Attachments, Limits, bad_word_ids, make_requests, truncated
from llmkit.llm_jobs import Batch, BeamJob, Job, Output, SamplingJob
from llmkit.messages import CallTarget
from llmkit.plugins import load_plugins

T = TypeVar("T")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]


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
        self._stages = front.stages
        self._defaults = front.generation_defaults
        self._hooks = prepare_hooks(plugins)
        self._processors = processor_checks(plugins)
        check_grammar_backend(config, plugins)
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
            return Batch(self._running(), jobs).run()

    def _job(self, prompt: _Prompt, params: SamplingParams) -> Job:
        check_prompt(prompt.ids, self._limits.vocab_size)
        prompt_ids = truncated(prompt.ids, params, self._limits)
        parsers = prompt.parsers
        if parsers is not None:
            params = parsers.constrained(params)
        prepared = self._prepare(prompt_ids, params)
        params = prepared.params
        self._stages.check(params)
        words = bad_word_ids(self.tokenizer, params.bad_words, self._limits.vocab_size)
        structured = params.structured
        grammar = None if structured is None else self._grammars.compile_now(structured)
        attachments = dataclasses.replace(
            prepared.attachments, bad_words=words, grammar=grammar, thinking=thinking_of(parsers, params)
        )
        requests = make_requests(prompt_ids, params, RequestContext(), self._limits, attachments)
        if params.beam_search is not None:
            return BeamJob(
                requests[0], params, self.tokenizer, parsers, self._stages, self._limits.vocab_size
            )
        return SamplingJob(requests, params, self.tokenizer, parsers, self._stages)

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Prompt:
    ids: Sequence[int]
    parsers: AnswerParsers | None = None
    """What its answers are parsed with."""


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
