"""A front in the test's own process: real generator, pipeline and templates over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn

from llmkit.config import Config
from llmkit.contracts import (
    AddRequest,
    EngineReady,
    EngineStats,
    FinishReason,
    PositionLogprobs,
    ReasoningFormat,
    StepOutput,
    TokenLogprob,
    ToolFormat,
)
from llmkit.errors import Draining, EngineDead
from llmkit.frontend.chat_template import ChatTemplate
from llmkit.frontend.generate import FrontGenerator
from llmkit.frontend.parsing import Formats
from llmkit.frontend.prepare import PrepareHook, Preparer
from llmkit.frontend.requests import Limits
from llmkit.frontend.services import FrontModel, FrontServices, served_model
from llmkit.frontend.stages import Stages
from llmkit.messages import Choice
from llmkit.registry import Entry, Registry
from llmkit.server.app import build_app
from llmkit.testing.bytes_tokenizer import BOS_ID, CHATML, EOS_ID, START_ID, VOCAB_SIZE
from llmkit_observability import plugin as observability_plugin
from llmkit_openai_api import plugin as openai_plugin

MAX_MODEL_LEN = 512


class ByteTokenizer:
    """Ids are bytes; see ``llmkit.testing.bytes_tokenizer``."""

    vocab_size = VOCAB_SIZE
    bos_token_id = BOS_ID
    eos_token_id = EOS_ID
    special_ids = frozenset({EOS_ID, START_ID, BOS_ID})
    special_tokens = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    longest_token: int | None = len("<|im_start|>")
    _names = {EOS_ID: b"<|im_end|>", START_ID: b"<|im_start|>", BOS_ID: b"<s>"}

    def __init__(self, add_bos: bool = False) -> None:
        self._add_bos = add_bos

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [BOS_ID] if add_special_tokens and self._add_bos else []
        data = text.encode()
        while data:
            for token_id, name in self._names.items():
                if data.startswith(name):
                    ids.append(token_id)
                    data = data[len(name) :]
                    break
            else:
                ids.append(data[0])
                data = data[1:]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = (i for i in ids if not (skip_special_tokens and i in self.special_ids))
        return b"".join(self.token_bytes(i) for i in kept).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._names.get(token_id) or bytes([token_id] if token_id < 256 else [])


@dataclass
class Script:
    """What the engine does with one request."""

    pieces: Sequence[str | bytes | Sequence[int]] = ("Hello", ", ", "world")
    finish: FinishReason = FinishReason.STOP
    error: str | None = None
    """Of ``finish`` error."""
    hang_after: int | None = None
    """Pieces until it waits for ever."""
    release: asyncio.Event | None = None
    """Waited for before the first piece."""
    pause_s: float = 0.0
    floor: float = -0.25
    """The logprob of every token."""


class ScriptedEngine:
    """``EngineClient`` without an engine; counts what runs."""

    def __init__(self) -> None:
        self.ready = EngineReady(
            MAX_MODEL_LEN, VOCAB_SIZE, 65, 16, 1024, 0, (Choice("model", "script", "it is a test"),)
        )
        self.script: Callable[[AddRequest], Script] = lambda request: Script()
        self.requests: list[AddRequest] = []
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {"sleep": ["kv_cache"], "wake_up": [], "stop_profile": ["/t/trace"]}
        """Method -> its answer, or the error it ends with."""
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.generated = 0
        self.dead = asyncio.Event()

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.running),
            blocks_total=64,
            blocks_held=len(self.running),
            generated_tokens=self.generated,
        )

    def stream(self, request: AddRequest) -> _Outputs:
        if self.dead.is_set():
            raise EngineDead("the engine process is gone")
        self.requests.append(request)
        self.running.add(request.request_id)
        return _Outputs(self, request)

    async def call(self, target: str, method: str, *args: Any) -> Any:
        self.calls.append((target, method, *args))
        answer = self.answers.get(method, [] if target == "workers" else None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.running.discard(request_id)


class _Outputs:
    def __init__(self, engine: ScriptedEngine, request: AddRequest) -> None:
        self._engine, self._request = engine, request
        self._outputs = self._run(engine.script(request))
        self._step: asyncio.Future[StepOutput] | None = None

    def __aiter__(self) -> _Outputs:
        return self

    async def __anext__(self) -> StepOutput:
        step = self._step = asyncio.ensure_future(anext(self._outputs))
        died = asyncio.ensure_future(self._engine.dead.wait())
        try:
            await asyncio.wait({step, died}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                return step.result()
            self._engine.running.discard(self._request.request_id)
            raise EngineDead("the engine process is gone")
        finally:
            died.cancel()
            if not step.done():
                step.cancel()
            await asyncio.gather(step, died, return_exceptions=True)

    def ready(self) -> Sequence[StepOutput]:
        return ()

    async def aclose(self) -> None:
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait({self._step})
        await self._outputs.aclose()
        if self._request.request_id in self._engine.running:
            self._engine.abort(self._request.request_id)

    async def _run(self, script: Script) -> AsyncIterator[StepOutput]:
        request, sent = self._request, 0
        if script.release is not None:
            await script.release.wait()
        asked = self._of_prompt(script)
        for position in asked:
            yield StepOutput(request.request_id, prompt_logprobs=[position])
        if request.max_tokens == 0:
            self._engine.running.discard(request.request_id)
            yield StepOutput(request.request_id, finish=FinishReason.LENGTH)
            return
        for position, piece in enumerate(script.pieces):
            if position == script.hang_after:
                await asyncio.Event().wait()
            await asyncio.sleep(script.pause_s)
            ids = list(piece.encode() if isinstance(piece, str) else piece)
            ids = ids[: request.max_tokens - sent]
            sent += len(ids)
            if sent == request.max_tokens:
                yield self._last(ids, script, FinishReason.LENGTH)
                return
            yield StepOutput(request.request_id, ids, self._logprobs(ids, script))
            self._engine.generated += len(ids)
        if script.hang_after is not None:
            await asyncio.Event().wait()
        ending = script.finish is FinishReason.STOP
        yield self._last([EOS_ID] if ending else [], script, script.finish)

    def _last(self, ids: list[int], script: Script, finish: FinishReason) -> StepOutput:
        self._engine.running.discard(self._request.request_id)
        self._engine.generated += len(ids)
        logprobs = self._logprobs(ids, script)
        error = script.error if finish is FinishReason.ERROR else None
        return StepOutput(self._request.request_id, ids, logprobs, finish, error=error)

    def _of_prompt(self, script: Script) -> list[PositionLogprobs]:
        count = self._request.params.prompt_logprobs
        if count is None:
            return []
        return [
            PositionLogprobs(
                TokenLogprob(i, script.floor - at, count + 1),
                tuple(TokenLogprob((i + k) % 256, script.floor - k, k) for k in range(1, count + 1)),
            )
            for at, i in enumerate(self._request.prompt_ids[1:])
        ]

    def _logprobs(self, ids: list[int], script: Script) -> list[PositionLogprobs] | None:
        count = self._request.params.logprobs
        if count is None:
            return None
        return [
            PositionLogprobs(
                TokenLogprob(i, script.floor, 1),
                tuple(TokenLogprob((i + k) % 256, script.floor - k, k + 1) for k in range(count)),
            )
            for i in ids
        ]


@dataclass(frozen=True)
class State:
    phase: str = "ready"
    detail: str = ""
    fraction: float | None = None


@dataclass
class LocalFront:
    """The server's view of a front, with everything a test turns."""

    config: Config = field(default_factory=Config)
    template: str | None = CHATML
    tokenizer: Any = None
    """None: :class:`ByteTokenizer`."""
    hooks: Sequence[PrepareHook] = ()
    add_bos: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tool: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    stages: Stages = Stages()

    def __post_init__(self) -> None:
        self.state = State()
        self.died = asyncio.Event()
        self.exit_code = 0
        self.error: EngineDead | None = None
        self.engine = ScriptedEngine()
        self.ready = self.engine.ready
        self.choices = ()
        self.services = FrontServices(self.config)
        tokenizer = self.tokenizer or ByteTokenizer(self.add_bos)
        chat = None if self.template is None else ChatTemplate(self.template, tokenizer)
        limits = Limits(MAX_MODEL_LEN, VOCAB_SIZE, (EOS_ID,), bounds=self.config.limits)
        formats = Formats(
            tokenizer,
            self.tool,
            self.reasoning,
            tool_name=None if self.tool is None else "tool",
            reasoning_name=None if self.reasoning is None else "reasoning",
        )
        generator = FrontGenerator(
            self.engine,
            tokenizer,
            limits,
            self.config,
            Preparer(self.hooks),
            self.services.observers,
            formats=formats,
            stages=self.stages,
        )
        self.generator = generator
        self.services.complete(
            FrontModel(tokenizer, chat, self.defaults, formats=formats, stages=self.stages),
            generator,
            served_model(self.config, "tiny", "/models/tiny", MAX_MODEL_LEN),
            self.engine,
        )

    def says(self, *pieces: str | bytes | Sequence[int], **options: Any) -> None:
        """The engine emits these for every request from now on."""
        self.engine.script = lambda request: Script(pieces, **options)

    def die(self) -> None:
        self.error = EngineDead("the engine process is gone")
        self.state = State("dead", str(self.error))
        self.engine.dead.set()
        self.died.set()

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def drain(self, timeout_s: float) -> None:
        self.state = State("draining")
        self.generator.close(lambda: Draining("the server is shutting down"))


def server_config(**server: Any) -> Config:
    config = Config()
    return replace(config, server=replace(config.server, **server))


def limited_config(**limits: Any) -> Config:
    config = Config()
    return replace(config, limits=replace(config.limits, **limits))


@asynccontextmanager
async def serving(front: LocalFront, plugins: Any = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real HTTP server around ``front``."""
    app = build_app(front, plugins or plugins_of(*BUILT_IN), front.config)
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    # Only what a test needs of uvicorn's own life: its main loop and its shutdown mostly sleep.
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    (listener,) = server.servers
    port = listener.sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False, verify=False
        ) as client:
            yield client
    finally:
        listener.close()
        for task in server.server_state.tasks:
            task.cancel()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        for connection in list(server.server_state.connections):
            connection.transport.close()
        await asyncio.sleep(0)


BUILT_IN = (
    Entry("routes", "openai", openai_plugin.make_router, "openai-api"),
    Entry(
        "routes",
        "anthropic",
        openai_plugin.make_messages_router,
        "openai-api",
        traits={"failures": openai_plugin.word_failure},
    ),
    Entry("routes", "metrics", observability_plugin.make_router, "observability"),
)


def plugins_of(*entries: Entry) -> Any:
    """Loaded plugins as the server sees them, with just these registry entries."""
    registry = Registry()
    registry.add(entries)
    return SimpleNamespace(registry=registry)
