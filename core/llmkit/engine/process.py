"""The engine process: messages in, steps, messages out, until it is drained or fails.

The front owns the sockets' directory; the engine connects, and reads and writes one msgspec struct a
ZeroMQ message. What arrives is decoded as ``messages.ToEngine`` and nothing else.
"""

from __future__ import annotations

import gc
import threading
import time
import traceback
from pathlib import Path

import msgspec
import zmq

from llmkit.engine.core import EngineCore
from llmkit.errors import LlmkitError, StartupError, UsageError
from llmkit.messages import (
    AbortRequests,
    AddRequest,
    Call,
    Drain,
    EngineFailed,
    FromEngine,
    StepOutput,
    StepOutputs,
    ToEngine,
)

INBOX, OUTBOX = "engine.in", "engine.out"
"""File names of the two sockets in the front's directory."""
HEALTH_INTERVAL_MS = 1000
"""How often an idle engine asks whether its workers live."""
FLUSH_MS = 2000
"""How long the last messages may take to reach a front that reads."""
MAX_QUEUED_MESSAGES = 10_000
"""A front this far behind makes the engine wait."""
COLLECTOR = (10_000, 20, 200)
"""Thresholds of Python's collector of cycles. With the usual ones it looks every few steps at all objects
there are; with 100,000 requests waiting that takes half a second."""


def calm_collector() -> None:
    """Let the collector look at new objects often and at all of them rarely; for a whole process.

    What is there already is never looked at again. The loop collects everything when it is idle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR)


class EngineSockets:
    """The engine's ends of the two sockets. Sending is safe from any thread; receiving is one's own."""

    def __init__(self, directory: str | Path) -> None:
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket in (self._inbox, self._outbox):
            socket.set_hwm(MAX_QUEUED_MESSAGES)
        self._inbox.connect(f"ipc://{Path(directory) / INBOX}")
        self._outbox.connect(f"ipc://{Path(directory) / OUTBOX}")
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        with self._sending:
            self._outbox.send(self._encoder.encode(message))

    def receive(self, timeout_ms: int) -> list[ToEngine]:
        """All messages that have come, waiting up to ``timeout_ms`` for the first."""
        messages: list[ToEngine] = []
        if not self._inbox.poll(timeout_ms):
            return messages
        while self._inbox.poll(0):
            messages.append(self._decoder.decode(self._inbox.recv()))
        return messages

    def close(self) -> None:
        """Flush what was sent, within ``FLUSH_MS``."""
        self._inbox.close(linger=0)
        self._outbox.close(linger=FLUSH_MS)
        self._context.term()


class EngineLoop:
    """Serves one core to one front. Owns the core's life from here on."""

    def __init__(self, core: EngineCore, sockets: EngineSockets) -> None:
        self._core = core
        self._sockets = sockets
        self._drain_until: float | None = None
        self._collected = True
        """Since the last step."""

    def run(self) -> int:
        """Serve until drained or failed; returns the process's exit code."""
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - whatever it was, the front is told and the process ends
            self._report(error)
            return 1
        finally:
            self._core.shutdown()
        return 0

    def _serve(self) -> None:
        while True:
            for message in self._sockets.receive(self._patience_ms()):
                self._handle(message)
            if self._drain_until is not None:
                if time.monotonic() >= self._drain_until:
                    self._emit(self._core.abort_all())
                if not self._core.has_work:
                    return
            outputs = self._core.step()
            if outputs is not None:
                self._sockets.send(outputs)
                self._collected = False
            else:
                self._core.check_health()
                self._tidy()

    def _tidy(self) -> None:
        """Nothing has come for a while: what a collection of cycles takes now delays nobody."""
        if not self._collected and not self._core.has_work:
            gc.collect()
            self._collected = True

    def _patience_ms(self) -> int:
        idle = not self._core.has_work and self._drain_until is None
        return HEALTH_INTERVAL_MS if idle else 0

    def _handle(self, message: ToEngine) -> None:
        match message:
            case AddRequest():
                self._emit(self._core.add(message))
            case AbortRequests():
                self._emit(self._core.abort(message.request_ids))
            case Call():
                self._sockets.send(self._core.call(message))
            case Drain():
                self._drain_until = time.monotonic() + message.timeout_s

    def _emit(self, outputs: list[StepOutput]) -> None:
        if outputs:
            self._sockets.send(StepOutputs(outputs, self._core.stats))

    def _report(self, error: Exception) -> None:
        failed = failure(error, during="a step failed")
        self._emit(self._core.fail(failed.message))
        self._sockets.send(failed)


def failure(error: BaseException, *, during: str) -> EngineFailed:
    """What the front is told: our own errors in their words, others with where they came from."""
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, LlmkitError):
        mendable = isinstance(error, StartupError | UsageError)
        return EngineFailed(str(error), error.exit_code, detail, mendable)
    return EngineFailed(f"{during}: {type(error).__name__}: {error}", 1, detail)
