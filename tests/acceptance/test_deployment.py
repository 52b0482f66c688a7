"""A server as it is deployed: behind TLS and keys that change, under systemd, as a container's process 1."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.testing.http import ServerProcess, validate_stream
from tests.acceptance.test_life import OpenStream, until
from tests.cli.test_init import UNSHARE, children
from tests.core.server.certificates import Authority

SECRET = "xyzzy"
BODY = {"messages": [{"role": "user", "content": f"slowly {SECRET}"}], "user": SECRET, "max_tokens": 4}


def heard_from(manager: socket.socket) -> list[str]:
    """All lines that have come so far."""
    lines: list[str] = []
    while True:
        try:
            lines += manager.recv(4096, socket.MSG_DONTWAIT).decode().splitlines()
        except BlockingIOError:
            return lines


def test_keys_certificates_logs_and_the_service_manager(scripted: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second, mine = (authority.issue(name) for name in ("first", "second", "mine"))
    for issued, name in ((first.cert, "tls.crt"), (first.key, "tls.key")):
        shutil.copy(issued, tmp_path / name)
    keys = tmp_path / "keys"
    keys.write_text("old-key\n")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    server = scripted.start(
        f"--ssl-certfile={tmp_path / 'tls.crt'}",
        f"--ssl-keyfile={tmp_path / 'tls.key'}",
        f"--ssl-ca-certs={authority.cert}",
        "--ssl-cert-reqs=required",
        f"--api-key-file={keys}",
        "--access-log=json",
        "--enable-log-requests",
        "--log-level=debug",
        wait=False,
        environment={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"},
    )
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.load_cert_chain(mine.cert, mine.key)
    url = server.url.replace("http:", "https:")

    def ask(key: str) -> httpx.Response:
        """On a connection of its own."""
        with httpx.Client(base_url=url, verify=context, trust_env=False, timeout=30) as client:
            return client.post(f"/v1/chat/completions?key={SECRET}", json=BODY, headers={"x-api-key": key})

    def shown() -> Any:
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return dict(pair for entry in (secured.getpeercert() or {})["subject"] for pair in entry)

    told: list[str] = []
    until(lambda: told.extend(heard_from(manager)) or "READY=1" in told)
    assert any(line.startswith("STATUS=starting: ") for line in told)
    assert ask("old-key").status_code == 200
    assert ask("new-key").status_code == 401
    stranger = ssl.create_default_context(cafile=str(authority.cert))
    with pytest.raises(httpx.TransportError), httpx.Client(verify=stranger, trust_env=False) as client:
        client.get(f"{url}/health")

    keys.write_text("# changed\nnew-key\n")
    shutil.copy(second.cert, tmp_path / "tls.crt")
    shutil.copy(second.key, tmp_path / "tls.key")
    until(lambda: ask("new-key").status_code == 200)
    assert ask("old-key").status_code == 401
    until(lambda: shown() == {"commonName": "second"})

    until(lambda: told.extend(heard_from(manager)) or told.count("WATCHDOG=1") > 2)
    assert server.stop() == 0
    told += heard_from(manager)
    manager.close()
    assert told.index("READY=1") < told.index("STOPPING=1")
    accesses = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    assert {200, 401} <= {access["status"] for access in accesses}
    assert len({access["caller"] for access in accesses if access["status"] == 200}) == 2
    assert "prompt tokens, SamplingParams" in server.log
    for word in (SECRET, "old-key", "new-key"):
        assert word not in server.log


def test_process_1_of_a_container_drains(scripted: Any) -> None:
    """With a root that nobody can write to, and a small /tmp."""
    container = [*UNSHARE, "--mount", "sh", "-ec"]
    mounts = 'mount -o remount,bind,ro /; mount -t tmpfs tmpfs "$TMPDIR"; '
    mounts += 'if touch "$0" 2>/dev/null; then exit 9; fi; '
    probe = subprocess.run(
        [*container, mounts + "true", __file__], env={**os.environ, "TMPDIR": "/tmp"}, check=False
    )
    if probe.returncode:
        pytest.skip("this machine lets no user make namespaces (unshare --user --pid --mount)")
    command = [*container, mounts + 'exec "$@"', __file__, sys.executable, "-m", "llmkit_cli.main", "serve"]
    server = scripted.start(command=command)
    stream = OpenStream(server)
    (init,) = children(server.pid)
    (front,) = children(init)
    assert children(front), "no engine"
    os.kill(init, signal.SIGTERM)
    until(lambda: server.health()[0] == 503)
    stream.join()
    assert validate_stream(stream.lines).text == "0123456789" * 8
    assert _ended(server) == 0
    assert "Traceback" not in server.log


def _ended(server: ServerProcess) -> int:
    assert server.process is not None
    return server.process.wait(30)
