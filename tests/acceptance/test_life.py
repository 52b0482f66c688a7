"""Start, drain, death: what clients, probes and supervisors see."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.testing.http import ServerProcess, free_port, validate_stream

SLOWLY = {"messages": [{"role": "user", "content": "slowly"}], "stream": True}
ENDLESS = {**SLOWLY, "max_tokens": 3000, "ignore_eos": True}
"""A minute's worth."""
HANG_S = 30.0
"""How long to wait for what must happen before calling it a hang."""


class OpenStream:
    """A stream read in a thread, so that a test can act while it runs."""

    def __init__(self, server: ServerProcess, body: dict[str, Any] = SLOWLY) -> None:
        self.lines: list[str] = []
        self.broken: Exception | None = None
        self._url = f"{server.url}/v1/chat/completions"
        self._body = body
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until(lambda: len(self.lines) > 6)

    def join(self) -> None:
        self._thread.join(HANG_S)
        assert not self._thread.is_alive(), "the stream hangs"

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=60, trust_env=False) as answer:
                self.lines.extend(answer.iter_lines())
        except httpx.HTTPError as error:
            self.broken = error


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


# Source: vllm-project/vllm#24897 (B122)
def test_killing_the_engine(scripted) -> None:
    server = scripted.start()
    (engine,) = server.children
    stream = OpenStream(server)
    os.kill(engine, signal.SIGKILL)
    until(lambda: server.health() != (200, {"phase": "ready", "detail": "ready", "fraction": None}))
    health = server.health()
    stream.join()
    answer = validate_stream(stream.lines)
    assert answer.error is not None
    assert "engine" in answer.error["message"]
    assert answer.choices[0].text.startswith("012")
    assert health is not None, "it goes before a probe could see a 503"
    assert health[0] == 503
    assert health[1]["phase"] == "dead"
    assert server.process.wait(HANG_S) == 1
    assert scripted.temporary_files(server) == []


def test_killing_the_front(scripted) -> None:
    shared = set(os.listdir("/dev/shm"))
    server = scripted.start()
    (engine,) = server.children
    stream = OpenStream(server)
    assert scripted.temporary_files(server) != []
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not alive(engine) and scripted.temporary_files(server) == [])
    assert set(os.listdir("/dev/shm")) <= shared
    stream.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(scripted, number: int) -> None:
    server = scripted.start()
    stream = OpenStream(server)
    server.process.send_signal(number)
    until(lambda: server.health()[0] == 503)
    assert server.health()[1]["phase"] == "draining"
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=SLOWLY, trust_env=False)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert httpx.get(f"{server.url}/live", trust_env=False).status_code == 200
    stream.join()
    answer = validate_stream(stream.lines)
    assert answer.text == "0123456789" * 8
    assert answer.choices[0].finish_reason == "stop"
    assert server.process.wait(HANG_S) == 0
    assert scripted.temporary_files(server) == []


def test_a_drain_has_an_end(scripted) -> None:
    server = scripted.start("--shutdown-timeout=0.3")
    stream = OpenStream(server, ENDLESS)
    assert server.stop() == 0
    stream.join()
    assert validate_stream(stream.lines).error["type"] == "server_error"


def test_a_second_signal_stops_at_once(scripted) -> None:
    server = scripted.start()
    stream = OpenStream(server, ENDLESS)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.health()[0] == 503)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(HANG_S) == 1
    stream.join()
    assert scripted.temporary_files(server) == []


def test_an_idle_server_stops_with_0(scripted) -> None:
    server = scripted.start()
    (engine,) = server.children
    assert server.stop() == 0
    assert not alive(engine)
    assert scripted.temporary_files(server) == []


def test_it_listens_before_it_is_ready_and_says_how_far_it_is(scripted) -> None:
    server = scripted.start(wait=False)
    until(lambda: server.health() is not None)
    status, body = server.health()
    live = httpx.get(f"{server.url}/live", trust_env=False)
    assert live.status_code == 200
    if status == 503:  # as good as always: the engine takes a second to start
        assert body["phase"] == "starting"
        assert body["detail"]
        early = httpx.post(f"{server.url}/v1/chat/completions", json=SLOWLY, trust_env=False)
        assert early.status_code == 503
        assert early.json()["error"]["code"] == "starting"
    server.wait_until_ready()


def test_a_signal_while_it_starts_ends_it(scripted) -> None:
    server = scripted.start(wait=False)
    until(lambda: server.health() is not None)
    assert server.stop() == 0
    assert "Traceback" not in server.log
    assert scripted.temporary_files(server) == []


def test_a_start_that_fails_says_why_and_ends_with_1(scripted) -> None:
    server = scripted.start(script={"start_error": "the weights are upside down"}, wait=False)
    assert server.process.wait(HANG_S) == 1
    assert "the weights are upside down" in server.log
    assert "Traceback" not in server.log
    assert scripted.temporary_files(server) == []


def test_a_failing_step_ends_its_request_with_an_error(scripted) -> None:
    server = scripted.start()
    body = {"messages": [{"role": "user", "content": "explode"}], "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=30
    ) as answer:
        streamed = validate_stream(answer.iter_lines())
    assert streamed.error is not None
    assert streamed.error["type"] == "server_error"
    assert streamed.choices[0].finish_reason is None


def test_a_port_in_use_is_one_line_and_1(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "llmkit_cli.main", "serve", "--port", str(server.port)]
    model = server.process.args[4]
    flags = ["--load-format=dummy", "--plugin=llmkit.testing.scripted", "--executor=scripted"]
    done = subprocess.run([*command, model, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"--port {server.port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert server.health()[0] == 200


def test_a_unix_socket_serves(scripted, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    server = scripted.start("--uds", str(path), wait=False)
    until(path.exists)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://llmkit") as client:
        until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json={"prompt": "ab"}).json()["choices"][0]["text"] == "ab"
    assert server.stop() == 0
    assert not path.exists()


def test_every_route_of_a_real_server_needs_the_key(scripted) -> None:
    server = scripted.start("--api-key=k", "--api-key=other")
    open_paths = {"/live", "/health", "/ping", "/version", "/metrics"}
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        schema = client.get("/openapi.json", headers={"Authorization": "Bearer other"}).json()
        routes = [(method, path) for path, methods in schema["paths"].items() for method in methods]
        routes += [("get", "/docs"), ("get", "/openapi.json"), ("get", "/nowhere")]
        assert len(routes) > 12
        for method, path in routes:
            status = client.request(method, path).status_code
            assert status == 401 if path not in open_paths else status != 401, path
            assert client.request(method, path, headers={"Authorization": "bearer k"}).status_code != 401


# Source: vllm-project/vllm#32439 (B111)
@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_up_frees_the_engine(scripted, stream: bool) -> None:
    server = scripted.start()
    body = json.dumps({**ENDLESS, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: server.metrics()["num_requests_running"] == 1)
    until(lambda: server.metrics()["num_requests_running"] == 0)
    assert server.metrics()["kv_blocks_held"] == 0
    after = httpx.post(f"{server.url}/v1/completions", json={"prompt": "ab"}, trust_env=False)
    assert after.status_code == 200


def test_free_port_is_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
