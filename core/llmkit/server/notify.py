"""What systemd is told of a unit with ``Type=notify``: the protocol of sd_notify(3), which is a datagram."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class ServiceManager:
    """Whoever started this process and set ``NOTIFY_SOCKET``; nobody where it is not set."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environ)

    def tell(self, *lines: str) -> None:
        """Such as ``READY=1``. A manager that does not listen changes nothing but the log."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.setblocking(False)
                sending.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            logger.warning("NOTIFY_SOCKET %r: %s", self._address, error.strerror or error)

    async def feed_watchdog(self) -> None:
        """Say for ever that the event loop turns, twice within the unit's ``WatchdogSec``."""
        while self._watchdog_s is not None and self._address is not None:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)


def one_line(text: str) -> str:
    """``text`` as it may follow ``STATUS=``."""
    return " ".join(text.split())


def _address(text: str) -> str | None:
    """A path, or behind ``@`` a name in the abstract namespace; other kinds are not for this program."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """What systemd sets for the unit's main process; None: it expects nothing of this one."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 else None
