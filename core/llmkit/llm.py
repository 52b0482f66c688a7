"""``LLM``: a model in the caller's process, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeGuard, TypeVar, cast

from llmkit.assemble.engine import build_engine
from llmkit.assemble.front import prepare_hooks, processor_checks
from llmkit.assemble.grammars import check_grammar_backend, grammar_compiler
from llmkit.assemble.model import open_frontend, open_model
from llmkit.assemble.model_hooks import model_hooks
from llmkit.config import sources
from llmkit.config.flags import needed
from llmkit.contracts import Parsing, RequestContext, SamplingParams, Tokenizer, read_tools
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import EngineError, RequestError, Sleeping, UsageError
from llmkit.frontend.check import check_priority, check_prompt
from llmkit.frontend.control import check_level, check_order, check_tags
from llmkit.frontend.fields import check_text, shown, wrong_type
from llmkit.frontend.grammars import grammar_spec
from llmkit.frontend.parsing import AnswerParsers, Formats, thinking_of
from llmkit.frontend.prepare import Prepared, Preparer
from llmkit.frontend.requests import Attachments, Limits, bad_word_ids, make_requests, truncated
from llmkit.llm_jobs import Batch, BeamJob, Job, Output, SamplingJob
from llmkit.messages import SLEEP_TAGS, CallTarget
from llmkit.plugins import load_plugins

T = TypeVar("T")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]
PROMPT_TYPES = "text or a list of token ids, or a list of such prompts"
MESSAGE_TYPES = "a list of messages, which are objects with a role, or a list of such conversations"


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
        if opened.info.pooling is not None:
            raise UsageError(
                f"{opened.files.name} embeds or classifies, and LLM generates; use llmkit serve and its"
                " /v1/embeddings or /pooling"
            )
        front = open_frontend(config, opened, plugins.registry)
        self.tokenizer: Tokenizer = front.tokenizer
        self._chat = front.chat
        self._formats = front.formats or Formats(front.tokenizer)
        self._stages = front.stages
        self._defaults = front.generation_defaults
        self._policy = config.scheduler.scheduling_policy
        self._hooks = prepare_hooks(plugins)
        self._processors = processor_checks(plugins)
        check_grammar_backend(config, plugins)
        built = build_engine(
            config, opened.files, opened.info, plugins.registry, _no_progress, model_hooks(plugins)
        )
        self._limits = Limits.of(built.ready, front, config.model.seed, bounds=config.limits)
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
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
    ) -> list[Output]:
        """Complete each prompt (text, or token ids); an output a prompt, in order.

        One ``params`` is for all, a list has one each; None takes the model's own sampling defaults. Without
        ``max_tokens`` (or where it is None) an answer goes on until the model ends it or the context is full.

        ``priority`` is for a policy that looks at it (``scheduling_policy="priority"``): lower goes first;
        one for all, or one each. Prompts of different ``cache_salt`` share no cached prefix.

        :raises RequestError: a prompt or parameter is wrong; nothing was generated.
        :raises EngineError: the engine failed.
        """
        many = [_Prompt(self._encode(prompt)) for prompt in _as_prompts(prompts)]
        return self._run(
            many, self._params_for(params, len(many)), _contexts(priority, cache_salt, len(many))
        )

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
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
    ) -> list[Output]:
        """Answer one conversation, or each of several; an output a conversation, in order.

        ``tools`` and ``tool_choice`` are as the server takes them; ``params``, ``priority`` and
        ``cache_salt`` as :meth:`generate` does.

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
        contexts = _contexts(priority, cache_salt, len(prompts))
        return self._run(prompts, self._params_for(params, len(prompts)), contexts)

    def reset_prefix_cache(self) -> None:
        """Forget the KV of every earlier prompt."""
        self._call("engine", "reset_prefix_cache")

    def sleep(self, level: int = 1) -> None:
        """Give memory back until :meth:`wake_up`: of the KV cache (1), of the weights too (2).

        The prefix cache is emptied. On a CPU weights stay where they are at level 1.

        :raises RequestError: there is no such level.
        """
        check_level(level)
        self._call("engine", "sleep", level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again, all of it or that of ``tags`` (``weights``, ``kv_cache``).

        :raises RequestError: there is no such tag, or the KV cache would be awake before the weights.
        :raises EngineError: it failed; it may be tried again.
        """
        check_tags(tags)
        with self._turn:
            check_order(tags, self._call("engine", "asleep"))
            self._call("engine", "wake_up", list(tags or SLEEP_TAGS))

    def is_sleeping(self) -> bool:
        """Whether anything has still to be woken up."""
        return bool(self._call("engine", "asleep"))

    def start_profile(self) -> None:
        """:raises EngineError: without ``profiler_dir``, or where one is recorded already."""
        self._call("engine", "start_profile")

    def stop_profile(self) -> list[str]:
        """The paths of the traces, one a rank. :raises EngineError: none is recorded."""
        traces: list[str] = self._call("engine", "stop_profile")
        return traces

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

    def _run(
        self,
        prompts: Sequence[_Prompt],
        params: Sequence[SamplingParams],
        contexts: Sequence[RequestContext],
    ) -> list[Output]:
        jobs = [self._job(*asked) for asked in zip(prompts, params, contexts, strict=True)]
        with self._turn:
            engine = self._running()
            if engine.call("engine", "asleep"):
                raise Sleeping("the engine sleeps; wake_up() wakes it up")
            return Batch(engine, jobs).run()

    def _job(self, prompt: _Prompt, params: SamplingParams, context: RequestContext) -> Job:
        check_priority(context.priority, self._policy)
        check_prompt(prompt.ids, self._limits.vocab_size)
        prompt_ids = truncated(prompt.ids, params, self._limits)
        parsers = prompt.parsers
        if parsers is not None:
            params = parsers.constrained(params)
        prepared = self._prepare(prompt_ids, params, context)
        params = prepared.params
        self._stages.check(params)
        words = bad_word_ids(self.tokenizer, params.bad_words, self._limits.vocab_size)
        structured = params.structured
        grammar = None if structured is None else self._grammars.compile_now(structured)
        attachments = dataclasses.replace(
            prepared.attachments, bad_words=words, grammar=grammar, thinking=thinking_of(parsers, params)
        )
        requests = make_requests(prompt_ids, params, context, self._limits, attachments)
        if params.beam_search is not None:
            return BeamJob(
                requests[0], params, self.tokenizer, parsers, self._stages, self._limits.vocab_size
            )
        return SamplingJob(requests, params, self.tokenizer, parsers, self._stages)

    def _prepare(
        self, prompt_ids: Sequence[int], params: SamplingParams, context: RequestContext
    ) -> Prepared:
        if not self._hooks and not params.plugin_args:
            return Prepared(params, Attachments())
        preparer = Preparer(self._hooks, processors=self._processors)
        return _wait_for(preparer.run(prompt_ids, params, context))

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
        each: list[Any] = list(params) if _is_list(params) else [params]
        wrong = next((item for item in each if not isinstance(item, SamplingParams)), None)
        if wrong is not None:
            raise UsageError(f"params has {shown(wrong)}; give SamplingParams(...)")
        if len(each) != prompts:
            raise UsageError(f"{len(each)} SamplingParams for {prompts} prompts; give one, or one a prompt")
        return each


@dataclasses.dataclass(frozen=True, slots=True)
class _Prompt:
    ids: Sequence[int]
    parsers: AnswerParsers | None = None
    """What its answers are parsed with."""


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Several prompts, or one: text, or a sequence that begins with a number.

    :raises RequestError: something is neither text nor token ids.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not _is_list(prompts):
        raise wrong_type("prompts", prompts, PROMPT_TYPES)
    if prompts and isinstance(prompts[0], int):
        return [cast("Sequence[int]", prompts)]
    for place, prompt in enumerate(prompts):
        if not (isinstance(prompt, str) or _is_list(prompt)):
            raise wrong_type(f"prompts[{place}]", prompt, PROMPT_TYPES)
    return cast("Sequence[Prompt]", prompts)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _contexts(priority: int | Sequence[int], cache_salt: str | None, prompts: int) -> list[RequestContext]:
    """What is said of each prompt besides its parameters.

    :raises UsageError: there are more or fewer priorities than prompts.
    """
    each = list(priority) if _is_list(priority) else [cast("int", priority)] * prompts
    if len(each) != prompts:
        raise UsageError(f"{len(each)} priorities for {prompts} prompts; give one, or one a prompt")
    return [RequestContext(priority=value, cache_salt=cache_salt) for value in each]


def _as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    """:raises RequestError: something is no message."""
    one = _is_list(messages) and len(messages) > 0 and isinstance(messages[0], Mapping)
    conversations = [messages] if one else messages
    if not _is_list(conversations):
        raise wrong_type("messages", conversations, MESSAGE_TYPES)
    for conversation in conversations:
        wrong: Any = conversation
        if _is_list(conversation):
            wrong = next((message for message in conversation if not isinstance(message, Mapping)), None)
        if wrong is not None:
            raise wrong_type("messages", wrong, MESSAGE_TYPES)
    return cast("Sequence[Sequence[Message]]", conversations)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where the caller's thread runs an event loop (a notebook)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _no_progress(phase: str, fraction: float) -> None:
    """Nobody watches."""
