"""The front process's side of a deployment: its engine, from spawn to stop, and its services."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmkit.config import Config
from llmkit.contracts import CheckpointInfo, Choice, EngineReady, GrammarSpec, ModelFiles, Progress
from llmkit.errors import Draining, EngineDead, LlmkitError
from llmkit.frontend.client_mp import OUT_SOCKET, SocketEngineClient
from llmkit.frontend.engine_process import EngineDirectory, EngineProcess, describe_exit, engine_command
from llmkit.frontend.generate import FrontGenerator
from llmkit.frontend.grammars import GrammarCompiler, grammar_spec
from llmkit.frontend.pooling import FrontPooler
from llmkit.frontend.prepare import CheckArguments, PrepareHook, Preparer
from llmkit.frontend.requests import Limits
from llmkit.frontend.services import FrontModel, FrontServices, served_model
from llmkit.frontend.threads import in_daemon_thread

Phase = Literal["starting", "ready", "draining", "dead"]
LAST_WORDS_S = 0.5
"""After the engine's exit: how long what it sent before may take to arrive."""
DRAIN_GRACE_S = 5.0
"""Beyond the drain's own time: until an engine that does not end is killed."""
_POOLS = (
    "the model {!r} generates no text: it was started as one that embeds or classifies (--runner pooling,"
    " which auto takes for such models)"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrontState:
    """Where a front is in its life."""

    phase: Phase
    detail: str = ""
    """What it is doing, or what it died of."""
    fraction: float | None = None
    """Of what it is doing, from 0 to 1; None where there is no telling."""


@dataclass(frozen=True, slots=True)
class ModelAtHand:
    """A model whose files are here, and how a front starts with it."""

    files: ModelFiles
    info: CheckpointInfo
    launch: bytes
    """The engine's start-up payload, length in front."""
    load_front: Callable[[], FrontModel]
    """Tokenizer and template; may take seconds."""


MakeGrammars = Callable[[Callable[[], GrammarSpec]], GrammarCompiler]
"""Given what makes the vocabulary, which takes a moment and is called with the first grammar."""

FindModel = Callable[[Progress], ModelAtHand]
"""Find the model, fetching it if need be; may take as long as a download does. Runs in a thread."""


class Front:
    """Owns the engine process, its client, its directory and the services built on them.

    ``starting`` -> ``ready`` -> ``draining`` -> ``dead``; any phase may end in ``dead``. A start finds the
    model, then starts the engine. Whatever the way, no process, socket file or directory stays behind.
    """

    def __init__(
        self,
        config: Config,
        find_model: FindModel,
        *,
        hooks: Sequence[PrepareHook] = (),
        processors: Mapping[str, CheckArguments] | None = None,
        make_grammars: MakeGrammars | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        """``command`` starts the engine; this installation's own if None. Without ``make_grammars``,
        structured output is refused.
        """
        self.services = FrontServices(config)
        self.died = asyncio.Event()
        """Set once the engine is gone, or could not start, without having been asked to go."""
        self.exit_code = 0
        """What the program ends with."""
        self.error: LlmkitError | None = None
        """What it died of."""
        self.model: ModelAtHand | None = None
        """Once it was found."""
        self.choices: tuple[Choice, ...] = ()
        """What was chosen here rather than in the engine; once it is ready."""
        self._config = config
        self._find_model = find_model
        self._preparer = Preparer(hooks, processors=processors)
        self._make_grammars = make_grammars
        self._grammars: GrammarCompiler | None = None
        self._command = list(command) if command is not None else engine_command()
        self._state = self._search = FrontState("starting", "looking for the model")
        self._life: asyncio.Task[None] | None = None
        self._directory: EngineDirectory | None = None
        self._client: SocketEngineClient | None = None
        self._process: EngineProcess | None = None
        self._exit_watch: asyncio.Task[None] | None = None
        self._generator: FrontGenerator | None = None

    @property
    def state(self) -> FrontState:
        if self._state.phase != "starting":
            return self._state
        if self._client is None:
            return self._search
        if self._client.ready is not None:
            return FrontState("starting", "loading the tokenizer")
        return FrontState("starting", self._client.status.phase, self._client.status.fraction)

    @property
    def ready(self) -> EngineReady | None:
        """The engine's own account of itself, for the start-up summary."""
        return self._client.ready if self._client is not None else None

    @property
    def engine_pid(self) -> int | None:
        """The engine process's id while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Begin to start; returns at once. How it goes shows in ``state`` and ``died``."""
        assert self._life is None, "a front starts once"
        self._life = asyncio.create_task(self._live(), name="front")

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let those under way end, abort what is left after ``timeout_s``, stop.

        Before the engine is ready it just stops.
        """
        if self._state.phase == "ready":
            assert self._client is not None
            assert self._generator is not None
            assert self._life is not None
            self._state = FrontState("draining", "finishing the requests under way")
            self._generator.close(lambda: Draining("the server is shutting down and takes no new work"))
            self._client.drain(timeout_s)
            await asyncio.wait({self._life}, timeout=timeout_s + DRAIN_GRACE_S)
            if not self._life.done():
                self._die(EngineDead(f"the engine did not drain within {timeout_s + DRAIN_GRACE_S:g} s"))
        await self.stop()

    async def stop(self) -> None:
        """End the engine now and clean up; idempotent. Streams under way end with EngineDead."""
        if self._state.phase != "dead":
            self._state = FrontState("dead", "stopped")
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})
        await self._release()

    # ---- life ----

    async def _live(self) -> None:
        try:
            client, process = await self._start_up()
            await self._until_the_engine_ends(client, process)
        except LlmkitError as error:
            self._die(error)
        except Exception as error:  # noqa: BLE001 - our own fault: shown, and the program ends
            _log.exception("the front failed")
            self._die(EngineDead(f"internal error: {type(error).__name__}: {error}"))
        await self._release()

    async def _start_up(self) -> tuple[SocketEngineClient, EngineProcess]:
        model = self.model = await in_daemon_thread(self._search_model, "find-model")
        self._directory = EngineDirectory(OUT_SOCKET)
        client = self._client = SocketEngineClient(self._directory.path, self.services.observers.tell_step)
        process = await EngineProcess.start([*self._command, str(self._directory.path)], model.launch)
        self._process = process
        self._exit_watch = asyncio.create_task(self._watch_exit(process, client), name="engine-watch")
        loading = asyncio.create_task(in_daemon_thread(model.load_front, "load-tokenizer"))
        starting = asyncio.create_task(self._engine_ready(client))
        try:
            front_model, ready = await asyncio.gather(loading, starting)
        finally:
            loading.cancel()
            starting.cancel()
        self._begin_service(client, model, front_model, ready)
        return client, process

    def _search_model(self) -> ModelAtHand:
        """In a thread of its own; its progress is all that writes ``_search``."""

        def progress(phase: str, fraction: float) -> None:
            self._search = FrontState("starting", phase, fraction)

        return self._find_model(progress)

    def _begin_service(
        self, client: SocketEngineClient, model: ModelAtHand, front_model: FrontModel, ready: EngineReady
    ) -> None:
        config = self._config
        limits = Limits.of(
            ready,
            front_model,
            config.model.seed,
            isolate_callers=config.cache.isolate_prefix_cache,
            bounds=config.limits,
        )
        if self._make_grammars is not None:
            self._grammars = self._make_grammars(
                lambda: grammar_spec(
                    front_model.tokenizer, front_model.eos_ids, ready.vocab_size, front_model.formats
                )
            )
        self._generator = FrontGenerator(
            client,
            front_model.tokenizer,
            limits,
            config,
            self._preparer,
            self.services.observers,
            self._grammars,
            front_model.formats,
            front_model.stages,
            refusal=None if model.info.pooling is None else _POOLS.format(model.files.name),
        )
        pooler = None
        if model.info.pooling is not None:
            pooler = FrontPooler(
                client,
                self._generator,
                front_model.tokenizer,
                limits,
                config,
                self._preparer,
                model.info.pooling,
                self.services.observers,
            )
        self.choices = front_model.choices
        served = served_model(config, model.files.name, model.files.path, ready.max_model_len)
        self.services.complete(front_model, self._generator, served, client, pooler)
        self._state = FrontState("ready", "ready")

    async def _until_the_engine_ends(self, client: SocketEngineClient, process: EngineProcess) -> None:
        await client.failed.wait()
        if self._state.phase != "draining" or process.exit_code != 0:
            raise self._cause(client)
        self._state = FrontState("dead", "drained")

    async def _engine_ready(self, client: SocketEngineClient) -> EngineReady:
        await client.started.wait()
        if client.ready is None or client.failed.is_set():
            raise self._cause(client)
        return client.ready

    async def _watch_exit(self, process: EngineProcess, client: SocketEngineClient) -> None:
        """Tell the client that the engine is gone, once what it sent before has arrived."""
        code = await process.wait()
        deadline = asyncio.get_running_loop().time() + LAST_WORDS_S
        while asyncio.get_running_loop().time() < deadline and not client.failed.is_set():
            if code == 0 and not client.open_streams:
                break
            await asyncio.sleep(0.01)
        client.fail(f"the engine process is gone ({describe_exit(code)})")

    def _cause(self, client: SocketEngineClient) -> LlmkitError:
        """The engine's end as an error, in its own words where it had some."""
        error = EngineDead(client.dead or "the engine process is gone")
        if client.failure is not None:
            error.exit_code = client.failure.exit_code
            if client.failure.detail:
                error.add_note(f"in the engine process:\n{client.failure.detail.rstrip()}")
        return error

    def _die(self, error: LlmkitError) -> None:
        self.error = error
        self.exit_code = error.exit_code
        self._state = FrontState("dead", str(error))
        if self._generator is not None:
            self._generator.close(lambda: EngineDead(str(error)))
        self.died.set()

    async def _release(self) -> None:
        """Let go of everything; idempotent."""
        if self._generator is not None and not self.died.is_set():
            self._generator.close(lambda: Draining("the server has stopped"))
        if self._grammars is not None:
            self._grammars.close()
        if self._process is not None:
            await self._process.stop()
        if self._exit_watch is not None:
            await asyncio.wait({self._exit_watch})
        if self._client is not None:
            await self._client.close()
        if self._directory is not None:
            self._directory.remove()
