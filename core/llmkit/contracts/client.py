"""The front's side of the engine, and what a route gets to serve with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from llmkit.config import Config
from llmkit.contracts.control import EngineControl
from llmkit.contracts.parsers import Parsing
from llmkit.contracts.pooling import Pooler
from llmkit.contracts.tokenizer import Tokenizer
from llmkit.events import Event
from llmkit.messages import AddRequest, CallTarget, EngineReady, EngineStats, StepOutput
from llmkit.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from fastapi import APIRouter


class OutputStream(Protocol):
    """One request's outputs; ends after the one that has ``finish``. Since 0.1."""

    def __aiter__(self) -> AsyncIterator[StepOutput]: ...
    async def __anext__(self) -> StepOutput:
        """:raises EngineDead: the engine is gone; at the latest two seconds after it died."""

    def ready(self) -> Sequence[StepOutput]:
        """The outputs that would come now without waiting, taken; errors wait for ``anext``."""

    async def aclose(self) -> None:
        """Abort the request if it still runs."""


class EngineClient(Protocol):
    """Requests in, outputs back; in this process or another. Since 0.1."""

    @property
    def ready(self) -> EngineReady | None:
        """None until the engine answers."""

    @property
    def stats(self) -> EngineStats: ...

    def stream(self, request: AddRequest) -> OutputStream:
        """Send the request and give its outputs.

        :raises EngineDead: the engine is gone.
        """

    async def call(self, target: CallTarget, method: str, *args: Any) -> Any:
        """Run a named method between steps; of the workers' the answers are a list, one a rank. ``args``
        are plain msgpack values.

        :raises EngineError: there is no such method, it failed, or the engine is gone.
        """


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; the prompt counts once however many choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompt's."""
    reasoning_tokens: int = 0
    """Of the completion's, as far as somebody tells reasoning from the rest."""


class Generation(Protocol):
    """One request under way: an async iterator of (choice index, event).

    Where logprobs of the prompt were asked for, each choice begins with ``PromptLogprobs``. Every choice
    ends in exactly one ``Finished``. Closing it (``aclose``) aborts what still runs.
    """

    request_id: str
    prompt_ids: Sequence[int]
    num_choices: int
    """``params.n``, unless a plugin has changed that."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]: ...
    async def __anext__(self) -> tuple[int, Event]: ...
    def ready(self) -> Sequence[tuple[int, Event]]:
        """The events that would come now without waiting, taken: what a step of the engine gave together can
        be sent together."""

    async def aclose(self) -> None: ...
    @property
    def usage(self) -> Usage:
        """So far; final once the iterator has ended."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a route knows of a request besides prompt and parameters."""

    request_id: str | None = None
    """The client's; for logs and headers only."""
    headers: Mapping[str, str] = field(default_factory=dict)
    cache_salt: str | None = None
    priority: int = 0
    """Lower goes first. Other than 0 it is refused under ``fcfs`` and ``fair``, which look at no priority."""
    caller: str = ""
    """Who asks: the server's name for the API key, ``request.state.caller``; empty: nobody in particular."""
    timeout_s: float | None = None
    """The request ends with an error after that; ``--request-timeout`` where that is less."""
    default_max_tokens: int | None = None
    """Where ``params.max_tokens`` is None: cut to the context, unlike a request's own. None takes the
    model's."""


class Generator(Protocol):
    """From a prompt to events. Since 0.1."""

    def check_room(self, params: SamplingParams, prompts: int = 1) -> None:
        """Before work is put into a request: whether its choices would be queued now.

        :raises QueueFull: they would not, so try later.
        :raises RequestError: they never would, or their number is wrong.
        :raises EngineError: the engine is dead or draining.
        """

    async def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        context: RequestContext | None = None,
        *,
        add_special_tokens: bool = True,
        parsing: Parsing | None = None,
    ) -> Generation:
        """Check everything, then queue ``params.n`` choices.

        ``add_special_tokens``: a text gets those the tokenizer begins and ends texts with. ``parsing``: of an
        answer in a conversation; None leaves its text as it is.
        :raises RequestError: the request is wrong; nothing was sent.
        :raises EngineError: the engine is dead or draining.
        """

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids :meth:`submit` would make of ``text``, however many.

        :raises RequestError: it is no Unicode text.
        """

    async def detokenize(self, ids: Sequence[int], name: str = "tokens") -> str:
        """The text of ids, special tokens spelt out.

        :raises RequestError: an id is none; ``name`` is what the request calls them.
        """


class ChatRenderer(Protocol):
    """Messages to prompt ids. Since 0.1."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """:raises RequestError: in the template's own words, or a protected argument was given."""

    def render_ids(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """As :meth:`render`, encoded without adding special tokens again."""

    def opening(
        self,
        prompt: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """What of ``prompt``, as :meth:`render` gave it for these arguments, the answer continues: all behind
        the last message's text, or behind that of the message before it where the last one is continued.
        Nothing of a client's text is in it but what is continued; empty where it cannot be told.
        """


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients see of the model."""

    names: tuple[str, ...]
    """The first one is the one responses carry."""
    root: str
    max_model_len: int
    created_s: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that ended, as observers are told. Times are ``time.monotonic()``. Since 0.1."""

    request_id: str
    reasons: tuple[FinishReason, ...]
    """One per choice; ``abort`` for those the client left."""
    usage: Usage
    longest: int
    """Tokens of the longest choice."""
    max_tokens: int
    """Most that a choice could have: the request's own limit, or what the context left."""
    arrived_s: float
    scheduled_s: float | None
    """When it first was in a step; None: it never was."""
    first_token_s: float | None
    """None: it ended before a token came."""
    ended_s: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One message of outputs from the engine, as observers are told. Since 0.1."""

    stats: EngineStats
    """After it."""
    gaps_s: Mapping[float, int]
    """Since the tokens before: of how many requests the next tokens came after so long."""


@dataclass(frozen=True, slots=True)
class HttpRecord:
    """One HTTP request whose answer has ended, as observers are told. Since 0.1."""

    method: str
    """Empty where what came was no HTTP."""
    route: str
    """The route's path with its parameters' names; empty where none was reached."""
    status: int
    code: str
    """Of the error object that refused it; empty for other answers."""
    duration_s: float
    """Until the last byte was handed on."""


class Services(Protocol):
    """What routes get; complete once the engine is ready. Since 0.1."""

    config: Config
    generator: Generator
    """Of a model that pools: it tokenizes, and refuses what would generate."""
    pooler: Pooler | None
    """None: the model generates."""
    tokenizer: Tokenizer
    chat: ChatRenderer | None
    """None: the model has no chat template."""
    model: ServedModel
    generation_defaults: Mapping[str, Any]
    """Sampling fields of the model's generation config that a silent request takes."""
    tool_parser: str | None
    """Name of the format in which the model calls tools; None: it is not known."""
    reasoning_parser: str | None
    concealing_stage: str | None
    """An output stage that takes out what nobody is to read: no route may show token ids or logprobs."""

    control: EngineControl
    ready: EngineReady
    """The engine's own account of itself."""

    def stats(self) -> EngineStats: ...
    def renderer(self, template: str) -> ChatRenderer:
        """For a chat template that a request brings; may take a while, so not for the event loop.

        :raises RequestError: this server takes none from requests, or it is not valid or far too long.
        """

    async def reset_prefix_cache(self) -> bool:
        """Forget the KV of every request that has ended; True if none runs, which keeps its own.

        :raises EngineError: the engine is gone.
        """

    async def call_workers(self, method: str, *args: Any) -> list[Any]:
        """Call a method that a plugin registered for the workers, between steps; an answer a rank. ``args``
        are plain msgpack values.

        :raises EngineError: no plugin registered it, it failed, or the engine is gone.
        """

    def observe(self, observer: Callable[[RequestRecord], None]) -> None:
        """Have ``observer`` told, from now on, of each request once when it has ended.

        It runs in the front process's event loop, before the engine is ready at the earliest, and
        must be quick; one that raises is logged.
        """

    def observe_steps(self, observer: Callable[[StepRecord], None]) -> None:
        """Have ``observer`` told of each message of outputs; once a step, so it must be very quick."""

    def observe_http(self, observer: Callable[[HttpRecord], None]) -> None:
        """Have ``observer`` told of each HTTP request, refused ones too. Runs like :meth:`observe`'s."""


RouterFactory = Callable[[Services, Any], "APIRouter"]


@dataclass(frozen=True, slots=True)
class WordedFailure:
    """A failure as an API other than OpenAI's says it. Since 0.1."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    """Besides those that it had."""


FailureWords = Callable[[int, Mapping[str, Any], str], WordedFailure]
"""(status, OpenAI's error object, id of the request) -> what the client gets."""


class RegisterRoutes(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, factory: RouterFactory, *, failures: FailureWords | None = None) -> None:
        """``factory(services, options)`` runs once at start; its routes answer 503 until the engine
        is ready, and need the API key like every other route. ``failures`` words those on their paths,
        wherever they come from; None: as OpenAI does."""


class RegisterCommand(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, command: Callable[..., Any], *, help: str) -> None:
        """``command`` is a typed function as typer takes it, or a ``typer.Typer`` for a group."""


class RequestDraft(Protocol):
    """A request before it is checked, for ``prepare_request``. Since 0.1."""

    prompt_ids: Sequence[int]
    params: SamplingParams
    context: RequestContext
    plugin_args: Mapping[str, Any]
    """What the request carries for this plugin: ``params.plugin_args[name]``, else empty."""

    def set(self, field: str, value: Any, why: str) -> None:
        """Change a field of ``params``; the log says who and why."""

    def attach(self, data: bytes) -> None:
        """Bytes for the workers, found there under this plugin's name."""

    def cache_key(self, key: bytes) -> None:
        """Requests with different keys share no cached block."""

    def refuse(self, message: str, *, status: int = 400) -> None:
        """:raises RequestError: always."""
