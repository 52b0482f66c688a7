"""The program as process 1 of a container: signals are heard, orphans reaped, and a drain is a drain."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
HEAD = "import os, signal, sys, time\nfrom llmkit_cli.init import stay_behind_as_init\n"


@functools.cache
def _has_namespaces() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if not _has_namespaces():
        pytest.skip("this machine lets no user make a PID namespace (unshare --user --pid)")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class InNamespace:
    """A Python program as process 1 of a namespace of its own."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [*UNSHARE, sys.executable, "-c", HEAD + program], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout

    def signal(self, number: int) -> None:
        """To process 1."""
        (init,) = children(self.process.pid)
        os.kill(init, number)

    def end(self) -> int:
        return self.process.wait(30)


@pytest.fixture
def started() -> Iterator[list[InNamespace]]:
    running: list[InNamespace] = []
    yield running
    for one in running:
        one.process.kill()
        one.process.wait()
        one.said.close()


def test_a_signal_is_handed_on_once_and_the_exit_code_is_the_child_s(started: list[InNamespace]) -> None:
    program = """
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
stay_behind_as_init()
print(os.getpid() != 1, flush=True)
while not heard:
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(40 + len(heard))
"""
    one = InNamespace(program)
    started.append(one)
    assert one.said.readline() == "True\n"
    one.signal(signal.SIGTERM)
    assert one.end() == 41


def test_a_child_that_has_no_handler_yet_ends_by_the_signal(started: list[InNamespace]) -> None:
    """As during imports: process 1 would not hear of it at all."""
    one = InNamespace("stay_behind_as_init()\nprint('up', flush=True)\ntime.sleep(60)\n")
    started.append(one)
    assert one.said.readline() == "up\n"
    one.signal(signal.SIGTERM)
    assert one.end() == 128 + signal.SIGTERM


def test_orphans_are_reaped(started: list[InNamespace]) -> None:
    program = """
stay_behind_as_init()
reading, writing = os.pipe()
parent = os.fork()
if parent == 0:
    orphan = os.fork()
    if orphan:
        os.write(writing, str(orphan).encode())
    os._exit(0)
os.waitpid(parent, 0)
orphan = int(os.read(reading, 20))
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    try:
        os.kill(orphan, 0)  # it succeeds on one that has ended and was not reaped
    except ProcessLookupError:
        sys.exit(7)
    time.sleep(0.01)
sys.exit("it is still there")
"""
    one = InNamespace(program)
    started.append(one)
    assert one.end() == 7


def test_elsewhere_nothing_happens() -> None:
    program = (
        HEAD + "before = os.getpid()\nstay_behind_as_init()\nsys.exit(3 if os.getpid() == before else 4)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 3
