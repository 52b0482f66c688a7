"""Files that may change while the server runs: keys and certificates are read again then."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

from llmkit.errors import StartupError

POLL_S = 1.0
logger = logging.getLogger(__name__)


class WatchedFiles:
    """Calls ``read`` once they have changed; what fails is logged and tried again at the next change.

    Looks at what a path leads to, so that it also sees a link that was put elsewhere, as Kubernetes does.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], None]) -> None:
        """``read`` has been called for what is there now; it raises StartupError and keeps what it had."""
        self._paths = paths
        self._read = read
        self._seen = self._look()

    def poll(self) -> None:
        """Read again what has changed since the last call."""
        now = self._look()
        if now == self._seen:
            return
        self._seen = now
        names = ", ".join(self._paths)
        try:
            self._read()
        except StartupError as error:
            logger.error("%s; what was read before stays in force", error)
        else:
            logger.info("read again: %s", names)

    def _look(self) -> list[tuple[int, ...] | None]:
        return [_state(path) for path in self._paths]


async def watch(watched: Sequence[WatchedFiles]) -> None:
    """Poll for ever."""
    while True:
        await asyncio.sleep(POLL_S)
        for files in watched:
            files.poll()


def _state(path: str) -> tuple[int, ...] | None:
    """What differs once a file was written to or replaced; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


__all__ = ["WatchedFiles", "watch"]
