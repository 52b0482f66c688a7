"""The engine's process as the front sees it: started, watched, stopped, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

from llmkit.errors import StartupError

STOP_GRACE_S = 2.0
"""From the end of the engine's stdin to SIGKILL."""
_LONGEST_SOCKET_PATH = 103
"""Bytes that a Unix socket's path may have: 107 on Linux, 103 on macOS."""


class EngineDirectory:
    """A private directory (0700) for the sockets of one engine; gone after :meth:`remove`."""

    def __init__(self, longest_name: str) -> None:
        """:raises StartupError: there is no place for it, or the path is too long for a socket."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix="llmkit-"))
        except OSError as error:
            raise StartupError(
                f"no temporary directory can be made for the engine's sockets: {error}; set TMPDIR to a"
                " directory that can be written"
            ) from error
        if len(os.fsencode(self.path / longest_name)) > _LONGEST_SOCKET_PATH:
            self.remove()
            raise StartupError(
                f"{self.path / longest_name} is too long for a Unix socket ({_LONGEST_SOCKET_PATH} bytes);"
                " set TMPDIR to a shorter directory"
            )

    def remove(self) -> None:
        """Idempotent; the engine may do the same at the same time."""
        shutil.rmtree(self.path, ignore_errors=True)


def engine_command() -> list[str]:
    """The engine with this interpreter, less its argument: the directory with its sockets.

    It finds modules where this process does.
    ``-m`` alone puts the working directory first, where a file may hide an installed package.
    """
    here = {"", os.getcwd()}
    isolated = [] if here & set(sys.path) else ["-P"]
    return [sys.executable, *isolated, "-m", "llmkit.assemble.engine_main"]


class EngineProcess:
    """A child with its start-up payload on stdin, which then stays open: its end tells the child that
    this process is gone. Its output goes where this process's goes; signals of the terminal do not
    reach it. Owns the child and reaps it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._exit = asyncio.create_task(process.wait(), name="engine-exit")

    @classmethod
    async def start(cls, command: Sequence[str], payload: bytes) -> EngineProcess:
        """``payload`` is what ``assemble/launch.py`` packs, with its length in front.

        :raises StartupError: there is no such program, or no more processes are to be had.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise StartupError(f"cannot start the engine process {command[0]}: {error}") from error
        child = cls(process)
        try:
            assert process.stdin is not None
            process.stdin.write(payload)
            # One that dies early closes the pipe; its exit says so.
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
        except BaseException:
            await child.stop(0)
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is the signal that killed it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Until it ended; several may wait."""
        return await asyncio.shield(self._exit)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Let it end by itself at the end of its stdin, then kill it; idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait({self._exit}, timeout=grace_s)
        if not self._exit.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.wait({self._exit})


def describe_exit(code: int) -> str:
    """How a process ended, for a message."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; out of memory, or killed by hand" if name == "SIGKILL" else ""
    return f"{name}{hint}"
