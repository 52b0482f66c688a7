"""Binding: a clear word for each reason not to."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from llmkit.config import ServerConfig
from llmkit.errors import StartupError
from llmkit.server.listen import Listener


def test_port_0_takes_a_free_one() -> None:
    listener = Listener(ServerConfig(port=0))
    try:
        port = listener.sockets[0].getsockname()[1]
        assert listener.url == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        listener.close()


def test_a_port_in_use_is_named() -> None:
    first = Listener(ServerConfig(port=0))
    port = first.sockets[0].getsockname()[1]
    try:
        with pytest.raises(StartupError, match=f"--port {port}.*in use"):
            Listener(ServerConfig(port=port))
    finally:
        first.close()
    Listener(ServerConfig(port=port)).close()


def test_an_unknown_or_foreign_host_is_named() -> None:
    with pytest.raises(StartupError, match=r"--host no-such-host\.invalid"):
        Listener(ServerConfig(host="no-such-host.invalid", port=0))
    with pytest.raises(StartupError, match=r"--host 192\.0\.2\.1"):
        Listener(ServerConfig(host="192.0.2.1", port=0))


def test_a_name_is_listened_to_on_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (*v4, ("127.0.0.1", 0)),
        (*v4, ("127.0.0.2", 0)),
        (*v4, ("192.0.2.1", 0)),  # no address of this machine
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    listener = Listener(ServerConfig(host="localhost", port=0))
    monkeypatch.undo()
    try:
        port = listener.sockets[0].getsockname()[1]
        assert listener.url == f"http://127.0.0.1:{port}"
        reached = {one.getsockname()[0] for one in listener.sockets}
        assert {"127.0.0.1", "127.0.0.2"} <= reached <= {"127.0.0.1", "127.0.0.2", "::1"}
        for address in reached:
            with socket.create_connection((address, port)):
                pass
    finally:
        listener.close()


def test_localhost_is_reached_at_127_0_0_1() -> None:
    listener = Listener(ServerConfig(host="localhost", port=0))
    try:
        with socket.create_connection(("127.0.0.1", listener.sockets[0].getsockname()[1])):
            pass
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("host", "keys", "warns"),
    [("0.0.0.0", (), True), ("0.0.0.0", ("k",), False), ("127.0.0.1", (), False)],
)
def test_an_open_address_without_a_key_warns(
    host: str, keys: tuple[str, ...], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Listener(ServerConfig(host=host, port=0, api_key=keys)).close()
    assert ("--api-key" in caplog.text) is warns


def test_a_unix_socket_is_made_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "llmkit.sock"
    listener = Listener(ServerConfig(uds=str(path)))
    assert listener.url == f"unix:{path}"
    with pytest.raises(StartupError, match="another program listens"):
        Listener(ServerConfig(uds=str(path)))
    listener.close()
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    Listener(ServerConfig(uds=str(stale))).close()
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(StartupError, match="no socket"):
        Listener(ServerConfig(uds=str(file)))
    assert file.read_text() == "precious"
    with pytest.raises(StartupError, match="cannot listen"):
        Listener(ServerConfig(uds=str(tmp_path / "nowhere" / "x.sock")))
