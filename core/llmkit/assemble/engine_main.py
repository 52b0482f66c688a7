"""The engine process: ``python -m llmkit.assemble.engine_main``, started by the front."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
from contextlib import suppress

from llmkit.assemble.engine import build_engine
from llmkit.assemble.launch import EngineLaunch, read_launch
from llmkit.config import Config
from llmkit.engine.process import EngineLoop, EngineSockets, failure
from llmkit.errors import EngineError
from llmkit.messages import StartupStatus
from llmkit.plugins import load_plugins

ORPHANED = 1
"""Exit code of an engine whose front died."""


def main() -> int:
    """Serve until the front drains it (0), it fails (1) or cannot start (1 or 2)."""
    # A terminal sends both to the whole group of processes; when to stop is the front's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            launch = read_launch(stdin)
    except EngineError as error:
        print(f"llmkit engine: {error}", file=sys.stderr)
        return 2
    threading.Thread(target=_die_with_front, args=(launch,), name="front-watch", daemon=True).start()
    sockets = EngineSockets(launch.directory)
    try:
        return _serve(launch, sockets)
    finally:
        sockets.close()


def _serve(launch: EngineLaunch, sockets: EngineSockets) -> int:
    try:
        plugins = load_plugins(launch.config.plugins, _needed(launch.config))
        built = build_engine(launch.config, launch.files, launch.info, plugins.registry, _Progress(sockets))
    except Exception as error:  # noqa: BLE001 - whatever it was, the front is told and the process ends
        failed = failure(error, during="the engine could not start")
        sockets.send(failed)
        return failed.exit_code
    # What start-up made stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    sockets.send(built.ready)
    return EngineLoop(built.core, sockets).run()


def _needed(config: Config) -> dict[str, str]:
    return {
        "executor": config.parallel.executor,
        "policy": config.scheduler.scheduling_policy,
        "scheduler": config.scheduler.scheduler,
    }


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


def _die_with_front(launch: EngineLaunch) -> None:
    """Wait for the end of standard input, which comes only when the front is gone; then leave nothing."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(launch.directory, ignore_errors=True)
    for path in launch.unlink:
        with suppress(OSError):
            os.unlink(path)
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
