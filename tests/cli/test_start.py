"""What a start shows: it listens at once, says how far it is, and ends with one line and a code."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmkit.testing import bytes_tokenizer
from llmkit.testing.http import ServerProcess
from tests.cli.conftest import Run

ROOT = str(Path(__file__).parents[2])
SLOW = ("--load-format=dummy", "--plugin=tests.cli.slow_source")
SCRIPTED = ("--load-format=dummy", "--plugin=llmkit.testing.scripted", "--executor=scripted")


def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[ServerProcess, Path]]:
    """A server whose model is on its way, and the file that lets it arrive."""
    directory = bytes_tokenizer.write(tmp_path / "model")
    server = ServerProcess(
        [f"slow:{directory}", *SLOW, *SCRIPTED[1:]], environment={"PYTHONPATH": ROOT}, wait=False
    )
    with server:
        until(lambda: (server.health() or (0, {}))[1].get("fraction") == 0.4)
        yield server, directory / "here"


def test_it_listens_while_the_model_is_fetched(slow: tuple[ServerProcess, Path]) -> None:
    server, here = slow
    assert server.health() == (
        503,
        {"phase": "starting", "detail": "fetching the model", "fraction": 0.4},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server.url}/live") as answer:
        assert answer.status == 200
    assert server.children == []
    here.touch()
    server.wait_until_ready()
    until(lambda: "curl" in server.log, 10)
    assert "llmkit is ready" in server.log
    assert "slow (LlamaForCausalLM" in server.log
    assert server.stop() == 0


def test_a_signal_ends_a_server_that_fetches(slow: tuple[ServerProcess, Path]) -> None:
    server, _ = slow
    assert server.stop() == 0
    assert "Traceback" not in server.log


def test_a_fetch_that_fails_is_one_line(slow: tuple[ServerProcess, Path]) -> None:
    server, here = slow
    # Put in place whole: a file that exists and is still empty would let the model arrive.
    whole = here.with_suffix(".whole")
    whole.write_text("gone")
    whole.rename(here)
    assert server.process is not None
    assert server.process.wait(30) == 1
    assert [line for line in server.log.splitlines() if "is gone" in line] == [
        f"llmkit: MODEL slow:{here.parent}: it is gone"
    ]
    assert "Traceback" not in server.log


def test_a_model_that_is_not_there_is_one_line(llmkit: Run) -> None:
    for command in (["serve", "--port=0"], ["complete"], ["tokenize"]):
        ended = llmkit(command[0], "./nosuch", *command[1:], stdin="x")
        assert ended.returncode == 1, command
        (line,) = ended.stderr.strip().splitlines()
        assert line.startswith("llmkit: ")
        assert "./nosuch" in line


def test_a_taken_port_shows_before_the_model_is_looked_for(llmkit: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = llmkit("serve", f"slow:{tmp_path}", *SLOW, f"--port={port}", PYTHONPATH=ROOT)
    assert ended.returncode == 1
    assert f"--port {port}" in ended.stderr


def test_a_usage_error_of_the_engine_keeps_its_exit_code(llmkit: Run, model: str) -> None:
    for command in ("serve", "complete"):
        ended = llmkit(command, model, *SCRIPTED, "--max-model-len=99999", stdin="x", LLMKIT_PORT="0")
        assert ended.returncode == 2, ended.stderr
        assert "--max-model-len" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_debug_shows_where_the_engine_s_start_failed(llmkit: Run, model: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"start_error": "the weights are upside down"}))
    option = f"--plugin-option=llmkit.testing.scripted.script={script}"
    for command in (["serve", "--port=0"], ["complete"]):
        words = (command[0], model, *SCRIPTED, option, *command[1:])
        ended = llmkit("--debug", *words, stdin="x")
        assert ended.returncode == 1
        assert "in the engine process:" in ended.stderr
        assert "scripted.py" in ended.stderr
        plain = llmkit(*words, stdin="x").stderr
        assert "Traceback" not in plain
        assert plain.count("the weights are upside down") == 1


def test_plugins_of_the_environment_are_read_as_everywhere(llmkit: Run) -> None:
    shown = llmkit("--help", LLMKIT_PLUGIN='["llmkit.testing.scripted"]')
    assert shown.returncode == 0, shown.stderr
    wrong = llmkit("--help", LLMKIT_PLUGIN="nosuch")
    assert wrong.returncode == 2
    assert "nosuch" in wrong.stderr


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command: list[str]) -> None:
        self.leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": ROOT, "TERM": "dumb"},
            # Makes the terminal its own, so that Ctrl-C becomes a signal.
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )
        os.close(follower)
        self.text = ""

    def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
        """Read up to ``text``; what came behind it stays for the next."""
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.leader], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.text += os.read(self.leader, 4096).decode(errors="replace")
        self.text = self.text.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.leader, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.leader)


@pytest.fixture
def chat(model: str) -> Iterator[Terminal]:
    terminal = Terminal([sys.executable, "-m", "llmkit_cli.main", "chat", model, *SCRIPTED])
    yield terminal
    terminal.close()


def test_ctrl_c_at_the_prompt_ends_a_chat(chat: Terminal) -> None:
    chat.wait_for("> ")
    chat.type("hello\n")
    chat.wait_for("assistant")  # without a script the executor emits the prompt
    chat.wait_for("> ")
    chat.type("\x03")
    assert chat.process.wait(10) == 130
    assert termios.tcgetattr(chat.leader)[3] & termios.ECHO
    assert "Fatal" not in chat.text


def test_end_of_input_ends_a_chat(chat: Terminal) -> None:
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.process.wait(10) == 0
