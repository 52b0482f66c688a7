"""Real servers for tests: scripted without a model, and with the small real one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from llmkit.testing import bytes_tokenizer
from llmkit.testing.http import ServerProcess

SCRIPT = {
    "rules": [
        {"match": "capital of France", "text": "The capital of France is Paris."},
        {"match": "slowly", "text": "0123456789" * 8, "delay_ms": 20},
        {"match": "explode", "text": "abc", "raise_at": 2},
        {"match": "hang", "text": "abc", "hang_at": 2},
    ]
}


class Scripted:
    """Starts servers with the scripted executor, each with a temporary directory of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._servers: list[ServerProcess] = []
        self._engines: set[int] = set()

    def start(
        self,
        *flags: str,
        script: Any = None,
        wait: bool = True,
        model: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> ServerProcess:
        """``flags`` follow ``llmkit serve MODEL``; ``model`` is for ``bytes_tokenizer.write``."""
        place = self._root / f"server{len(self._servers)}"
        directory = bytes_tokenizer.write(place / "tiny", **(model or {}))
        (place / "script.json").write_text(json.dumps(script or SCRIPT))
        # Where the front puts its sockets; short, for a socket's path has about a hundred bytes.
        (place / "t").mkdir()
        server = ServerProcess(
            [
                str(directory),
                "--load-format=dummy",
                "--plugin=llmkit.testing.scripted",
                f"--plugin-option=llmkit.testing.scripted.script={place / 'script.json'}",
                "--executor=scripted",
                *flags,
            ],
            environment={"TMPDIR": str(place / "t"), **(environment or {})},
            wait=wait,
            command=command,
        )
        server.__enter__()
        self._servers.append(server)
        self._engines.update(server.children)
        return server

    def temporary_files(self, server: ServerProcess) -> list[str]:
        """What the server has left in its temporary directory."""
        return os.listdir(self._root / f"server{self._servers.index(server)}" / "t")

    def close(self) -> None:
        for server in self._servers:
            server.__exit__(None, None, None)
        for pid in self._engines:
            # The engines of servers that a test killed, should one have outlived it.
            with suppress(ProcessLookupError, FileNotFoundError):
                if b"engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """Starts servers that end with the test."""
    servers = Scripted(tmp_path_factory.mktemp("s"))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests that leave it as it was."""
    servers = Scripted(tmp_path_factory.mktemp("s"))
    yield servers.start()
    servers.close()


@pytest.fixture(scope="session")
def model_server() -> Iterator[ServerProcess]:
    """The small real model, whose answers depend on nothing but the request."""
    flags = ["--max-model-len=2048", "--deterministic"]
    with ServerProcess(["smollm2-135m", *flags], ready_timeout_s=240) as server:
        yield server
