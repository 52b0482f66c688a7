"""The engine process over its real sockets, with the scripted executor."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from llmkit.assemble.launch import EngineLaunch, read_launch, write_launch
from llmkit.config import Config, ParallelConfig, PluginConfig, SchedulerConfig
from llmkit.contracts import CheckpointInfo, EngineReady, FinishReason, ModelFiles
from llmkit.errors import EngineError
from llmkit.messages import (
    AbortRequests,
    Drain,
    EngineFailed,
    FromEngine,
    StartupStatus,
    StepOutputs,
)

from ..engine.harness import make_request

PATIENCE_S = 60.0
PLUGIN = "llmkit.testing.scripted"
ENGINE = [sys.executable, "-m", "llmkit.assemble.engine_main"]


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


class Front:
    """The front's side of one engine process."""

    def __init__(self, directory: Path, script: dict[str, Any], config: Config | None = None) -> None:
        self.directory = directory / "sockets"
        self.directory.mkdir(mode=0o700)
        self.uds = directory / "api.sock"
        self.listener = listen(self.uds)
        (directory / "script.json").write_text(json.dumps(script))
        options = f"{PLUGIN}.script={directory / 'script.json'}"
        self.context = zmq.Context()
        self.push, self.pull = self.context.socket(zmq.PUSH), self.context.socket(zmq.PULL)
        self.push.bind(f"ipc://{self.directory / 'engine.in'}")
        self.pull.bind(f"ipc://{self.directory / 'engine.out'}")
        self.decoder = msgspec.msgpack.Decoder(FromEngine)
        self.process = subprocess.Popen(
            [*ENGINE, str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        launch = EngineLaunch(
            config=replace(
                config or Config(),
                parallel=ParallelConfig(executor="scripted"),
                plugins=PluginConfig(plugin=(PLUGIN,), plugin_option=(options,)),
            ),
            files=ModelFiles(str(directory), "scripted", "1"),
            info=CheckpointInfo("None", {"max_position_embeddings": 512, "vocab_size": 300}),
            uds=str(self.uds),
        )
        write_launch(self.process.stdin, launch)

    def send(self, message: Any) -> None:
        self.push.send(msgspec.msgpack.encode(message))

    def receive(self) -> Any:
        assert self.pull.poll(PATIENCE_S * 1000), "the engine says nothing"
        return self.decoder.decode(self.pull.recv())

    def until(self, done: Callable[[Any], bool]) -> list[Any]:
        messages = [self.receive()]
        while not done(messages[-1]):
            messages.append(self.receive())
        return messages

    def tokens(self, name: str) -> tuple[list[int], Any]:
        """All of one request's tokens, and its last output."""
        tokens: list[int] = []
        while True:
            message = self.receive()
            for output in message.outputs if isinstance(message, StepOutputs) else ():
                if output.request_id == name:
                    tokens += output.token_ids
                    if output.finish:
                        return tokens, output

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.listener.close()
        self.context.destroy(linger=0)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Front]]:
    fronts: list[Front] = []

    def start(script: dict[str, Any], config: Config | None = None, *, ready: bool = True) -> Front:
        front = Front(tmp_path, script, config)
        fronts.append(front)
        if ready:
            messages = front.until(lambda message: not isinstance(message, StartupStatus))
            assert isinstance(messages[-1], EngineReady), messages[-1]
            assert len(messages) > 1, "the start-up says where it is"
        return front

    yield start
    for front in fronts:
        front.close()


def test_it_serves_and_drains(launch: Callable[..., Front]) -> None:
    front = launch({"rules": [{"match": "slow", "text": "s", "delay_ms": 5}]})
    front.send(make_request("a", b"hello", 10, eos_ids=(256,)))
    tokens, last = front.tokens("a")
    assert (tokens, last.finish) == ([*b"hello", 256], FinishReason.STOP)

    front.send(make_request("bad", [], 1))
    assert front.tokens("bad")[1].finish == FinishReason.ERROR

    front.send(make_request("b", b"slow", 400))
    front.until(lambda message: isinstance(message, StepOutputs) and message.outputs)
    front.send(AbortRequests(["b", "unknown"]))
    assert front.tokens("b")[1].finish == FinishReason.ABORT

    # Both signals are the front's business: an engine in its terminal's group must survive them.
    os.kill(front.process.pid, signal.SIGINT)
    os.kill(front.process.pid, signal.SIGTERM)
    front.send(make_request("c", b"slow", 30))
    front.send(Drain(PATIENCE_S))
    assert front.tokens("c")[1].finish == FinishReason.LENGTH
    assert front.process.wait(PATIENCE_S) == 0


def test_a_drain_aborts_what_does_not_end_in_time(launch: Callable[..., Front]) -> None:
    front = launch({"default": {"text": "s", "delay_ms": 5}})
    front.send(make_request("a", b"x", 500))
    front.until(lambda message: isinstance(message, StepOutputs) and message.outputs)
    front.send(Drain(0.0))
    assert front.tokens("a")[1].finish == FinishReason.ABORT
    assert front.process.wait(PATIENCE_S) == 0


def test_a_failed_step_ends_every_request_and_the_process(launch: Callable[..., Front]) -> None:
    front = launch({"rules": [{"match": "boom", "text": "abc", "raise_at": 2}]})
    front.send(make_request("fine", b"x", 400))
    front.send(make_request("boom", b"boom", 400))
    messages = front.until(lambda message: isinstance(message, EngineFailed))
    ends = {o.request_id: o for m in messages[:-1] for o in m.outputs if o.finish}
    assert {name: output.finish for name, output in ends.items()} == {
        "fine": FinishReason.ERROR,
        "boom": FinishReason.ERROR,
    }
    assert ends["fine"].error == messages[-1].message == "the script says that token 2 fails"
    assert "Traceback" in messages[-1].detail
    assert not messages[-1].mendable
    assert front.process.wait(PATIENCE_S) == messages[-1].exit_code == 1


@pytest.mark.parametrize(
    ("script", "config", "message", "code"),
    [
        pytest.param({"start_error": "no such weights"}, None, "no such weights", 1, id="start-up"),
        pytest.param(
            {},
            Config(scheduler=SchedulerConfig(scheduling_policy="fcsf")),
            "did you mean 'fcfs'",
            2,
            id="usage",
        ),
    ],
)
def test_a_start_that_is_refused(
    launch: Callable[..., Front], script: dict[str, Any], config: Config | None, message: str, code: int
) -> None:
    front = launch(script, config, ready=False)
    failed = front.until(lambda message: not isinstance(message, StartupStatus))[-1]
    assert isinstance(failed, EngineFailed)
    assert message in failed.message
    assert "Traceback" not in failed.message
    assert "Traceback" in failed.detail
    assert failed.mendable
    assert front.process.wait(PATIENCE_S) == failed.exit_code == code


@pytest.mark.parametrize("busy", ["idle", "working", "hanging"])
def test_nothing_is_left_when_the_front_dies(launch: Callable[..., Front], busy: str) -> None:
    front = launch(
        {"rules": [{"match": "hang", "hang_at": 0}, {"match": "slow", "text": "s", "delay_ms": 5}]}
    )
    if busy != "idle":
        front.send(make_request("a", b"slow" if busy == "working" else b"hang", 500))
        time.sleep(0.2)
    front.listener.close()
    assert front.process.stdin is not None
    front.process.stdin.close()
    assert front.process.wait(PATIENCE_S) == 1
    assert not front.directory.exists()
    assert not front.uds.exists()


def test_a_successor_keeps_its_socket(launch: Callable[..., Front]) -> None:
    front = launch({})
    front.listener.close()
    front.uds.unlink()
    with listen(front.uds):
        assert front.process.stdin is not None
        front.process.stdin.close()
        assert front.process.wait(PATIENCE_S) == 1
        assert not front.directory.exists()
        assert front.uds.is_socket()


@pytest.mark.parametrize("sent", [b"", (99).to_bytes(8, "big") + b"half"])
def test_nothing_is_left_when_the_front_dies_before_it_said_what_to_do(tmp_path: Path, sent: bytes) -> None:
    for name in ("engine.in", "engine.out"):
        (tmp_path / "sockets" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "sockets" / name).touch()
    done = subprocess.run([*ENGINE, str(tmp_path / "sockets")], input=sent, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert os.listdir(tmp_path) == []


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    for arguments in ([str(tmp_path)], []):
        done = subprocess.run(
            [*ENGINE, *arguments], stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 2
    assert os.listdir(tmp_path) == ["precious"]


def test_a_launch_survives_the_pipe() -> None:
    launch = EngineLaunch(
        Config(plugins=PluginConfig(load=("a", "b"), plugin_option=("a.x=1",))),
        ModelFiles("/x", "n", "i"),
        CheckpointInfo("A", {"rope": {"theta": 1e6}}),
        "/tmp/x.sock",
    )
    stream = io.BytesIO()
    write_launch(stream, launch)
    stream.seek(0)
    assert read_launch(stream) == launch


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "ended after 0 of 8", id="empty"),
        pytest.param((9).to_bytes(8, "big") + b"abc", "ended after 3 of 9", id="cut-off"),
        pytest.param((3).to_bytes(8, "big") + b"abc", "cannot be read", id="something-else"),
        pytest.param(b"\xff" * 8, "at most", id="endless"),
    ],
)
def test_a_launch_that_cannot_be_read(data: bytes, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_launch(io.BytesIO(data))
