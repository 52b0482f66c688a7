"""Memory and cores of this machine."""

from __future__ import annotations

import os

import psutil


def machine_memory() -> int:
    """Bytes of memory in all."""
    return int(psutil.virtual_memory().total)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
