"""The first process of a container, which has duties that no other process has."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

HANDED_ON = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
BY_SIGNAL = 128
"""Added to a signal's number, it is the exit code of what the signal killed."""


def stay_behind_as_init() -> None:
    """Where this is process 1, go on in a child; elsewhere do nothing. Call it before any thread starts.

    The process itself stays behind, hands signals on to that child, reaps whatever orphans come to it, and
    ends as the child ends. A process 1 would never hear of a signal that it has no handler for, such as a
    SIGTERM while Python still imports.
    """
    if os.getpid() != 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    # Blocked, signals wait until somebody asks for them, even those that the kernel spares process 1.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*HANDED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        # Out of the terminal's group: Ctrl-C comes once, handed on.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*HANDED_ON, signal.SIGCHLD})
        return
    os._exit(_watch_over(child))


def _watch_over(child: int) -> int:
    """Until ``child`` ends; gives the exit code."""
    while True:
        number = signal.sigwait({*HANDED_ON, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, number)
        code = _reap(child)
        if code is not None:
            return code if code >= 0 else BY_SIGNAL - code


def _reap(child: int) -> int | None:
    """Everything that has ended; gives how ``child`` did if it is among them."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = os.waitstatus_to_exitcode(status)
    return found
