"""The engine process: ``python -m llmkit.assemble.engine_main DIRECTORY``, started by the front.

``DIRECTORY`` holds the two sockets. The rest comes through standard input, which then stays open.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from llmkit.assemble.engine import build_engine
from llmkit.assemble.launch import EngineLaunch, read_launch
from llmkit.assemble.model_hooks import model_hooks
from llmkit.engine.process import INBOX, OUTBOX, EngineLoop, EngineSockets, calm_collector, failure
from llmkit.errors import EngineError
from llmkit.messages import StartupStatus
from llmkit.plugins import load_plugins

ORPHANED = 1
"""Exit code of an engine whose front died."""
LAST_LISTENER_S = 0.2
"""How long the sockets of a process that was killed may outlive its pipes."""


def main(argv: list[str]) -> int:
    """Serve until the front drains it (0), it fails (1) or cannot start (1 or 2)."""
    if len(argv) != 1:
        print("llmkit engine: `llmkit serve` starts it; it wants one argument, DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(argv[0])
    # A terminal sends both to the whole group of processes; when to stop is the front's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            launch = read_launch(stdin)
    except EngineError as error:
        print(f"llmkit engine: {error}", file=sys.stderr)
        _remove_sockets(directory)
        return 2
    threading.Thread(
        target=_die_with_front, args=(directory, launch.uds), name="front-watch", daemon=True
    ).start()
    sockets = EngineSockets(directory)
    try:
        return _serve(launch, sockets)
    finally:
        sockets.close()


def _serve(launch: EngineLaunch, sockets: EngineSockets) -> int:
    try:
        plugins = load_plugins(launch.config.plugins)
        built = build_engine(
            launch.config,
            launch.files,
            launch.info,
            plugins.registry,
            _Progress(sockets),
            model_hooks(plugins),
        )
    except Exception as error:  # noqa: BLE001 - whatever it was, the front is told and the process ends
        failed = failure(error, during="the engine could not start")
        sockets.send(failed)
        return failed.exit_code
    calm_collector()
    sockets.send(built.ready)
    return EngineLoop(built.core, sockets).run()


class _Progress:
    """Tells the front where the start-up is, a message for every percent at most."""

    def __init__(self, sockets: EngineSockets) -> None:
        self._sockets = sockets
        self._told: tuple[str, int] | None = None

    def __call__(self, phase: str, fraction: float) -> None:
        now = (phase, int(fraction * 100))
        if now != self._told:
            self._told = now
            self._sockets.send(StartupStatus(phase, fraction))


def _die_with_front(directory: Path, uds: str | None) -> None:
    """Wait for the end of standard input, which comes only when the front is gone; then leave nothing."""
    while os.read(0, 4096):
        pass
    _remove_sockets(directory)
    if uds is not None and not _is_served(uds):
        with suppress(OSError):
            os.unlink(uds)
    os._exit(ORPHANED)


def _remove_sockets(directory: Path) -> None:
    """What the front made and nothing else, should somebody have named another directory."""
    for name in (INBOX, OUTBOX):
        with suppress(OSError):
            (directory / name).unlink()
    with suppress(OSError):
        directory.rmdir()


def _is_served(path: str) -> bool:
    """Whether it is not the dead front's socket any more: no socket, or another server's."""
    deadline = time.monotonic() + LAST_LISTENER_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                return not Path(path).is_socket()
            except OSError:
                return True
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
