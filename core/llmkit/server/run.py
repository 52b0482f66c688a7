"""From a front to an exit code: listen, serve, follow signals and the engine's life, stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

import uvicorn
import uvloop
from fastapi import FastAPI

from llmkit.config import Config, TlsConfig
from llmkit.contracts import HttpRecord
from llmkit.errors import EngineDead, UsageError
from llmkit.server import access_log
from llmkit.server.app import Plugins, build_app
from llmkit.server.files import WatchedFiles, watch
from llmkit.server.front import Front
from llmkit.server.keys import Keys
from llmkit.server.listen import BACKLOG, Listener
from llmkit.server.notify import ServiceManager, one_line
from llmkit.server.protocol import BoundedProtocol
from llmkit.server.tls import Tls

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STATE_POLL_S = 0.1
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep an idle connection: the side that closes first must be theirs."""
FLUSH_S = 5
"""After a drain: how long connections get to take the last of their answers."""
DEATH_NOTICE_S = 1.0
"""After the engine's death: how long ``/health`` says so before the server goes."""

OnState = Callable[[Front, str], None]
"""Told at each change of ``front.state``, with the URL."""


def run(front: Front, plugins: Plugins, config: Config, on_state: OnState | None = None) -> int:
    """Serve until a signal or the engine's death; gives the program's exit code.

    0 after SIGTERM or SIGINT and a drain; 1 if a second signal cut it short. The address is bound
    first, before the front starts.

    :raises UsageError: flags do not fit each other.
    :raises StartupError: the address cannot be had, or a file of keys or of TLS is no good.
    :raises LlmkitError: what the front died of; it could not start, or the engine is gone.
    """
    _log_to_stderr(config.server.log_level)
    if config.server.access_log != "off":
        access_log.set_up()
    _check_proxies(config.server.forwarded_allow_ips)
    keys = Keys(config.server)
    tls = _tls(config.tls)
    listener = Listener(config.server, secure=tls is not None)
    try:
        app = build_app(front, plugins, config, keys)
        watched = [WatchedFiles(reader.paths, reader.read) for reader in (keys, tls) if reader is not None]
        life = _Life(front, _http(app, front, config, tls), config, listener, watched, on_state)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(life.run())
    finally:
        listener.close()


def _tls(config: TlsConfig) -> Tls | None:
    if config.ssl_certfile is not None:
        return Tls(config)
    given = [flag for flag in fields(config) if getattr(config, flag.name) != flag.default]
    if given:
        raise UsageError(f"--{given[0].name.replace('_', '-')} needs --ssl-certfile")
    return None


def _check_proxies(proxies: Sequence[str]) -> None:
    if "*" in proxies and len(proxies) > 1:
        raise UsageError("--forwarded-allow-ips: * believes everybody; name no others beside it")
    for proxy in proxies:
        try:
            _ = proxy == "*" or ipaddress.ip_network(proxy)
        except ValueError as error:
            raise UsageError(
                f"--forwarded-allow-ips {proxy}: {error}; want an address, a network such as 10.0.0.0/8, or *"
            ) from None


def _http(app: FastAPI, front: Front, config: Config, tls: Tls | None) -> uvicorn.Config:
    server = config.server

    def on_refusal(status: int, client: str) -> None:
        front.services.observers.tell_http(HttpRecord("", "", status, "", 0.0))
        if server.access_log != "off":
            access_log.log_unread(access_log.FORMS[server.access_log], status, client)

    protocol: Any = partial(BoundedProtocol, on_refusal=on_refusal)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
    )


def _log_to_stderr(level: str) -> None:
    """Unless the program has set up logging of its own."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "debug":
        # It tells of each phase of its own life, which is not the server's.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: :class:`_Life` decides when it ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Life:
    """Owns the order of events between the first accept and the last close."""

    def __init__(
        self,
        front: Front,
        http: uvicorn.Config,
        config: Config,
        listener: Listener,
        watched: Sequence[WatchedFiles],
        on_state: OnState | None,
    ) -> None:
        self._front = front
        self._listener = listener
        self._watched = watched
        self._on_state = on_state
        self._manager = ServiceManager()
        self._drain_s = config.server.shutdown_timeout
        self._server = _Server(http)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(self._server.serve(sockets=self._listener.sockets), name="http")
        others = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("state", self._report()),
                ("files", watch(self._watched)),
                ("watchdog", self._manager.feed_watchdog()),
            )
        ]
        try:
            await self._front.start()
            code = await self._until_end(serving)
            self._server.should_exit = True
            await serving
        finally:
            for task in others:
                task.cancel()
            self._server.should_exit = self._server.force_exit = True
            await self._front.stop()
            await asyncio.wait({serving, *others})
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
            self._tell()
        return code

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            logger.warning("%s again: stopping now", number.name)
            self._stop_now.set()
            self._server.force_exit = True
        else:
            logger.info("%s: refusing new requests, finishing those under way", number.name)
            self._stop.set()

    async def _until_end(self, serving: asyncio.Task[None]) -> int:
        """Wait for what ends the service and let requests under way end; gives the exit code."""
        await _first(self._stop.wait(), self._front.died.wait(), _ended(serving))
        if serving.done():
            serving.result()
            raise RuntimeError("the HTTP server ended by itself")
        if self._front.died.is_set():
            await self._after_death()
        elif self._front.state.phase == "ready":
            await _first(self._front.drain(self._drain_s), self._stop_now.wait(), self._front.died.wait())
        if self._front.died.is_set():
            await self._after_death()
        return 1 if self._stop_now.is_set() else 0

    async def _after_death(self) -> NoReturn:
        """Streams under way end with an error event by themselves; probes get to see a 503."""
        if self._front.ready is not None:
            logger.error("the engine died: %s", self._front.state.detail)
            await _first(asyncio.sleep(DEATH_NOTICE_S), self._stop_now.wait())
        raise self._front.error or EngineDead(self._front.state.detail)

    async def _report(self) -> None:
        told = None
        while True:
            state = self._front.state
            if state != told:
                told = state
                self._tell()
            await asyncio.sleep(STATE_POLL_S)

    def _tell(self) -> None:
        state = self._front.state
        news = [f"STATUS={one_line(f'{state.phase}: {state.detail}')}"]
        if state.phase != "starting":
            news.append("READY=1" if state.phase == "ready" else "STOPPING=1")
        self._manager.tell(*news)
        if self._on_state is None:
            return
        try:
            self._on_state(self._front, self._listener.url)
        except Exception:
            logger.exception("showing the server's state failed")  # it serves all the same


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


async def _first(*awaitables: object) -> None:
    """Wait for the first to end, cancel the others; the first's exception is raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]  # type: ignore[call-overload]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
