"""The engine in another process: ZeroMQ ipc sockets, msgspec messages, one stream a request."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from llmkit.contracts import AddRequest, EngineReady, EngineStats, StepOutput, StepRecord
from llmkit.errors import EngineDead, EngineError
from llmkit.messages import (
    AbortRequests,
    Call,
    CallAnswer,
    CallTarget,
    Drain,
    EngineFailed,
    FromEngine,
    StartupStatus,
    StepOutputs,
    ToEngine,
)

IN_SOCKET = "engine.in"
"""The front pushes, the engine pulls."""
OUT_SOCKET = "engine.out"
_log = logging.getLogger(__name__)


class SocketEngineClient:
    """``contracts.EngineClient`` over two sockets that it binds in ``directory``.

    Owns the sockets and every open stream. It knows of the engine what the engine says; that the
    process ended is for its owner to tell it with :meth:`fail`. Lives on one event loop.
    """

    def __init__(self, directory: Path, on_step: Callable[[StepRecord], None] | None = None) -> None:
        """``on_step`` is told of each message of outputs."""
        self.ready: EngineReady | None = None
        self.stats = EngineStats()
        self.status = StartupStatus("starting the engine")
        """The last word on the start-up."""
        self.started = asyncio.Event()
        """The engine is ready, or failed."""
        self.failed = asyncio.Event()
        self.failure: EngineFailed | None = None
        """What the engine said when it gave up."""
        self.loop = asyncio.get_running_loop()
        self._context = zmq.asyncio.Context()
        self._to_engine = self._bind(zmq.PUSH, directory / IN_SOCKET)
        self._from_engine = self._bind(zmq.PULL, directory / OUT_SOCKET)
        self._encoder = msgspec.msgpack.Encoder()
        self._streams: dict[str, _Stream] = {}
        self._on_step = on_step
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[CallAnswer]] = {}
        self.dead: str | None = None
        """Why the engine is gone, once it is."""
        self._receiver = asyncio.create_task(self._receive(), name="engine-outputs")
        self._receiver.add_done_callback(self._receiver_ended)

    @property
    def open_streams(self) -> int:
        """Requests whose last output has not come."""
        return len(self._streams)

    # ---- requests ----

    def stream(self, request: AddRequest) -> _Stream:
        """As ``contracts.EngineClient.stream``; the request is sent before this returns."""
        self._check_alive()
        assert request.request_id not in self._streams, "request ids are unique"
        stream = self._streams[request.request_id] = _Stream(self, request.request_id)
        self._send(request)
        return stream

    async def call(self, target: CallTarget, method: str, *args: Any) -> Any:
        """As ``contracts.EngineClient.call``."""
        self._check_alive()
        call_id = next(self._call_ids)
        answered = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(Call(call_id, target, method, list(args)))
            answer = await answered
        finally:
            del self._calls[call_id]
        if answer.error is not None:
            raise EngineError(answer.error)
        return answer.value

    def drain(self, timeout_s: float) -> None:
        """Tell the engine that no more requests come; it ends by itself."""
        self._check_alive()
        self._send(Drain(timeout_s))

    # ---- the end ----

    def fail(self, why: str) -> None:
        """The engine is gone: end every stream with EngineDead, refuse new ones."""
        if self.dead is not None:
            return
        self.dead = why
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(EngineDead(why))
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDead(why))
        self.failed.set()
        self.started.set()

    async def close(self) -> None:
        """Let go of the sockets; idempotent. What was not sent yet is dropped."""
        self.fail("the engine was stopped")
        self._receiver.cancel()
        await asyncio.wait({self._receiver})
        self._context.destroy(linger=0)

    # ---- messages ----

    def _bind(self, kind: int, path: Path) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        # Bounded by the queue of requests on one side and the lengths of answers on the other.
        socket.set_hwm(0)
        socket.bind(f"ipc://{path}")
        return socket

    def _send(self, message: ToEngine) -> None:
        # The socket keeps the order of sends. Only closing it can make one fail.
        sent = asyncio.ensure_future(self._to_engine.send(self._encoder.encode(message)))
        sent.add_done_callback(_ignore_cancel)

    async def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(FromEngine)
        while True:
            data = await self._from_engine.recv()
            try:
                message = decoder.decode(data)
            except msgspec.MsgspecError as error:
                self._give_up(EngineFailed(f"the engine sent a message that cannot be read: {error}"))
                return
            self._take(message)

    def _receiver_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the engine's outputs cannot be read any more", exc_info=error)
            self.fail(f"the engine's outputs cannot be read any more: {error}")

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self.stats = message.stats
                self._take_outputs(message)
            case CallAnswer():
                call = self._calls.get(message.call_id)
                if call is not None and not call.done():  # else nobody waits for it any more
                    call.set_result(message)
            case StartupStatus():
                self.status = message
            case EngineReady():
                self.ready = message
                self.stats = message.stats
                self.started.set()
            case EngineFailed():
                self._give_up(message)

    def _take_outputs(self, message: StepOutputs) -> None:
        """Give each its stream, and tell how long most have waited for theirs: few times are different."""
        now, last = time.monotonic(), []
        for output in message.outputs:
            if output.finish is None:
                stream = self._streams.get(output.request_id)
            else:
                stream = self._streams.pop(output.request_id, None)
            if stream is None:  # it was closed, and the abort is on its way
                continue
            stream.put(output)
            if output.token_ids:
                last.append(stream.last_token_s)
                stream.last_token_s = now
        if self._on_step is not None:
            gaps = {now - then: count for then, count in Counter(last).items() if then}
            self._on_step(StepRecord(message.stats, gaps))

    def _give_up(self, failure: EngineFailed) -> None:
        self.failure = failure
        if failure.detail and not failure.mendable:
            _log.error("the engine failed: %s\n%s", failure.message, failure.detail)
        self.fail(failure.message)

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)

    def _closed(self, request_id: str) -> None:
        """A stream was closed early."""
        if self._streams.pop(request_id, None) is not None:
            self._send(AbortRequests([request_id]))


class _Stream:
    """One request's outputs, read by one task."""

    __slots__ = ("_client", "_error", "_open", "_outputs", "_reader", "_request_id", "last_token_s")

    def __init__(self, client: SocketEngineClient, request_id: str) -> None:
        self._client = client
        self._request_id = request_id
        self._outputs: deque[StepOutput] = deque()
        self._reader: asyncio.Future[None] | None = None
        """Of the task that waits for the next output."""
        self._error: EngineDead | None = None
        self._open = True
        self.last_token_s = 0.0
        """When its last token came; 0: none has."""

    def put(self, output: StepOutput) -> None:
        self._outputs.append(output)
        self._wake()

    def fail(self, error: EngineDead) -> None:
        self._error = error
        self._wake()

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> StepOutput:
        while self._open:
            if self._outputs:
                output = self._outputs.popleft()
                self._open = output.finish is None
                return output
            if self._error is not None:
                self._open = False
                raise self._error
            self._reader = self._client.loop.create_future()
            await self._reader
        raise StopAsyncIteration

    def ready(self) -> Sequence[StepOutput]:
        if not self._outputs:
            return ()
        outputs = [*self._outputs]
        self._outputs.clear()
        self._open = self._open and outputs[-1].finish is None
        return outputs

    async def aclose(self) -> None:
        self._open = False
        self._outputs.clear()
        self._wake()
        self._client._closed(self._request_id)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _ignore_cancel(sent: asyncio.Future[Any]) -> None:
    """Take note of a send that closing the socket cut off, so that asyncio does not warn of it."""
    if not sent.cancelled():
        sent.exception()
