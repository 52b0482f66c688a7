"""What systemd hears, from a socket as systemd has it."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit.server.notify import ServiceManager, one_line


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A manager's socket, and how ``NOTIFY_SOCKET`` names it."""
    name = str(tmp_path / "notify") if request.param == "file" else "@llmkit-test-" + uuid.uuid4().hex
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.settimeout(10)
        yield listening, name


def test_a_message_is_one_datagram(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    ServiceManager({"NOTIFY_SOCKET": name}).tell("READY=1", "STATUS=" + one_line("all  is\nwell"))
    assert listening.recv(4096) == b"READY=1\nSTATUS=all is well"


@pytest.mark.parametrize("name", ["", "relative", "vsock:2:1234"])
def test_without_a_manager_nothing_is_sent(name: str, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": name} if name else {}).tell("READY=1")
    assert caplog.text == ""


def test_a_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")
    assert "No such file" in caplog.text


async def test_the_watchdog_is_fed_twice_in_its_time(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
    feeding = asyncio.create_task(ServiceManager(environ).feed_watchdog())
    for _ in range(3):
        assert await asyncio.to_thread(listening.recv, 4096) == b"WATCHDOG=1"
    feeding.cancel()


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}], ids=str
)
async def test_a_watchdog_that_is_not_this_process_s_is_left_alone(
    manager: tuple[socket.socket, str], watchdog: dict[str, str]
) -> None:
    _, name = manager
    async with asyncio.timeout(10):
        await ServiceManager({"NOTIFY_SOCKET": name, **watchdog}).feed_watchdog()
