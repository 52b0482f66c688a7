"""An engine process without an engine: real sockets, real messages, tokens that count up.

Run as a program with the sockets' directory. Reads a launch (length, msgpack of :class:`Orders`) like the
real one. What a request
gets depends on its first prompt token: HANG one token and then silence, BREAK the end of the engine, anything
else ``max_tokens`` tokens ``prompt[0], prompt[0] + 1, ...``, one a step.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import msgspec
import zmq

from llmkit.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallAnswer,
    Drain,
    EngineFailed,
    EngineReady,
    EngineStats,
    FromEngine,
    StartupStatus,
    StepOutput,
    StepOutputs,
    ToEngine,
)
from llmkit.types import FinishReason

HANG, BREAK, GARBAGE = 1, 2, 3


class Orders(msgspec.Struct):
    fail: str = ""
    """Fail to start with these words."""
    never_ready: bool = False


def main() -> int:
    directory = sys.argv[1]
    length = int.from_bytes(sys.stdin.buffer.read(8), "big")
    orders = msgspec.msgpack.decode(sys.stdin.buffer.read(length), type=Orders)
    threading.Thread(target=_die_with_front, daemon=True).start()
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    inbox.connect(f"ipc://{directory}/engine.in")
    outbox.connect(f"ipc://{directory}/engine.out")

    def send(message: FromEngine) -> None:
        outbox.send(msgspec.msgpack.encode(message))

    send(StartupStatus("loading weights", 0.5))
    if orders.fail:
        send(EngineFailed(orders.fail, 2, "a traceback"))
        context.destroy(linger=2000)
        return 2
    if orders.never_ready:
        time.sleep(600)
    send(EngineReady(128, 300, 10, 16, 1, 1, ()))
    serve(inbox, send, outbox)
    context.destroy(linger=2000)
    return 0


def serve(inbox: zmq.Socket, send, outbox: zmq.Socket) -> None:
    decoder = msgspec.msgpack.Decoder(ToEngine)
    running: dict[str, tuple[AddRequest, int]] = {}
    draining, steps = False, 0
    while True:
        busy = any(request.prompt_ids[0] != HANG or not done for request, done in running.values())
        if draining and not busy:
            return
        while inbox.poll(0 if busy else 10):
            match decoder.decode(inbox.recv()):
                case AddRequest() as request:
                    running[request.request_id] = (request, 0)
                    if request.prompt_ids[0] == GARBAGE:
                        outbox.send(b"\xc1")
                    if request.prompt_ids[0] == BREAK:
                        send(EngineFailed("a step failed: no luck", 1, "a traceback"))
                        return
                case AbortRequests(request_ids=ids):
                    gone = [name for name in ids if running.pop(name, None)]
                    outputs = [StepOutput(name, finish=FinishReason.ABORT) for name in gone]
                    send(StepOutputs(outputs, EngineStats(running=len(running), steps=steps)))
                case Call(call_id=call_id, method="echo", target=target, args=args):
                    send(CallAnswer(call_id, [target, *args]))
                case Call(call_id=call_id, method="die"):
                    return
                case Call(call_id=call_id):
                    send(CallAnswer(call_id, error="no such method"))
                case Drain():
                    draining = True
        outputs = []
        for name, (request, done) in list(running.items()):
            if request.prompt_ids[0] == HANG and done:
                continue
            last = done + 1 == request.max_tokens
            token = request.prompt_ids[0] + done
            outputs.append(
                StepOutput(name, [token], finish=FinishReason.LENGTH if last else None, cached_tokens=3)
            )
            running[name] = (request, done + 1)
            if last:
                del running[name]
        if outputs:
            steps += 1
            send(StepOutputs(outputs, EngineStats(running=len(running), steps=steps)))
            time.sleep(0.002)


def _die_with_front() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
