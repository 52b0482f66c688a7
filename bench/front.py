"""CPU time of the front process for one streamed token, HTTP, SSE and socket write included.

Starts ``llmkit serve`` with the scripted executor and a real HTTP socket, opens many streams at once and
reads them to the end. The front's CPU time (user and system, all threads of the process that answers HTTP) is
read when every stream has its first token and when the first one ends. It is CPU time and not wall time,
so that other load on the machine matters less. "all" counts from the first request to the last byte:
connections, requests, templates and ends with it. The floor is a loop that only writes to as many sockets.

    python bench/front.py [--streams 300] [--tokens 300] [--step-ms 60] [--rounds 3] [--n 1] [--logprobs K]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import uvloop

from llmkit.testing import bytes_tokenizer
from llmkit.testing.http import ServerProcess

TEXT = "The harbour was quiet at dawn; somebody had left a lamp burning. "


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument(
        "--step-ms", type=float, default=60.0, help="of the engine; long enough to write a step"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n", type=int, default=1, help="choices a stream")
    parser.add_argument("--logprobs", type=int, help="top logprobs a token")
    parser.add_argument("--plain", action="store_true", help="/v1/completions instead of chat")
    arguments = parser.parse_args()
    body = {"stream": True, "max_tokens": arguments.tokens, "ignore_eos": True, "n": arguments.n}
    if arguments.plain:
        body["prompt"] = "tell"
    else:
        body["messages"] = [{"role": "user", "content": "tell"}]
    if arguments.logprobs is not None:
        body |= (
            {"logprobs": arguments.logprobs}
            if arguments.plain
            else {"logprobs": True, "top_logprobs": arguments.logprobs}
        )
    path = "/v1/completions" if arguments.plain else "/v1/chat/completions"
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory), arguments) as server:
        rounds = [asyncio.run(measure(server, path, body, arguments)) for _ in range(arguments.rounds)]
    print(f"{arguments.streams} streams, {arguments.n} choices each, {arguments.tokens} tokens a choice")
    floor = floor_us(arguments.streams)
    print(f"{'a bare write, us':>26} {floor:7.2f}")
    for name, place in (("us a token", 0), ("all", 1), ("writes a step and stream", 2)):
        values = [figures[place] for figures in rounds]
        print(f"{name:>26} {statistics.median(values):7.2f}   ({', '.join(f'{v:.2f}' for v in values)})")


def serving(directory: Path, arguments: argparse.Namespace) -> ServerProcess:
    model = bytes_tokenizer.write(directory / "tiny")
    script = {"default": {"text": TEXT, "delay_ms": arguments.step_ms}}
    (directory / "script.json").write_text(json.dumps(script))
    rows = arguments.streams * arguments.n
    return ServerProcess(
        [
            str(model),
            "--load-format=dummy",
            "--plugin=llmkit.testing.scripted",
            f"--plugin-option=llmkit.testing.scripted.script={directory / 'script.json'}",
            "--executor=scripted",
            f"--max-num-seqs={rows}",
            f"--kv-cache-memory-bytes={1 << 30}",
        ]
    )


CHUNK = b"f0\r\n" + b"x" * 0xF0 + b"\r\n"
"""About what a token of a chat is on the wire."""


@dataclass
class Progress:
    """What all streams have received."""

    pieces: int = 0
    reads: int = 0
    ended: int = 0
    started: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Stream(asyncio.Protocol):
    """One request on one connection; counts what comes and keeps nothing."""

    def __init__(self, request: bytes, progress: Progress) -> None:
        self._request, self._progress = request, progress
        self._tail = b""
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        progress = self._progress
        seen = data.count(b"data: {")
        if not self._begun and seen:
            self._begun = True
            progress.started += 1
        progress.pieces += seen
        progress.reads += 1
        tail = self._tail + data[-32:]
        if b"[DONE]" in tail:
            progress.ended += 1
            self._transport.close()
        self._tail = tail[-32:]
        progress.changed.set()


async def measure(
    server: ServerProcess, path: str, body: dict[str, object], arguments: argparse.Namespace
) -> tuple[float, float, float]:
    """(us a token while all run, us a token in all, reads a step and stream)."""
    front = psutil.Process(server.pid)
    streams, tokens = arguments.streams, arguments.tokens * arguments.n * arguments.streams
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    progress = Progress()
    loop = asyncio.get_running_loop()
    begun = cpu_s(front)
    for _ in range(streams):
        await loop.create_connection(
            lambda: Stream(head.encode() + payload, progress), "127.0.0.1", server.port
        )
    await until(progress, lambda: progress.started == streams)
    first, pieces, reads = cpu_s(front), progress.pieces, progress.reads
    await until(progress, lambda: progress.ended > 0)
    steady, counted = cpu_s(front) - first, progress.pieces - pieces
    if counted < tokens / 4:
        raise SystemExit(f"only {counted} of {tokens} tokens came while all ran; give more --tokens")
    per_step = (progress.reads - reads) / (counted / arguments.n)
    await until(progress, lambda: progress.ended == streams)
    return 1e6 * steady / counted, 1e6 * (cpu_s(front) - begun) / tokens, per_step


def floor_us(streams: int, steps: int = 60) -> float:
    """CPU of writing a chunk to each of so many connections from an event loop that does nothing else."""

    class Reader(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            pass

    async def write() -> float:
        loop, taken = asyncio.get_running_loop(), []
        server = await loop.create_server(lambda: Keeping(taken), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader = threading.Thread(target=lambda: uvloop.run(read(port)), daemon=True)
        reader.start()
        while len(taken) < streams:
            await asyncio.sleep(0.01)
        begun = time.thread_time()
        for _ in range(steps):
            await asyncio.sleep(0.05)
            for transport in taken:
                transport.write(CHUNK)
        took = time.thread_time() - begun
        for transport in taken:
            transport.close()
        await asyncio.to_thread(reader.join)
        return 1e6 * took / (streams * steps)

    async def read(port: int) -> None:
        loop = asyncio.get_running_loop()
        made = [await loop.create_connection(Reader, "127.0.0.1", port) for _ in range(streams)]
        while not all(transport.is_closing() for transport, _ in made):
            await asyncio.sleep(0.05)

    return uvloop.run(write())


class Keeping(asyncio.Protocol):
    """A connection that is only written to."""

    def __init__(self, taken: list[asyncio.WriteTransport]) -> None:
        self._taken = taken

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._taken.append(transport)  # type: ignore[arg-type]


async def until(progress: Progress, holds) -> None:
    while not holds():
        progress.changed.clear()
        await asyncio.wait_for(progress.changed.wait(), 60)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
