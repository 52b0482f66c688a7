"""The memory and cores that this process may use: the container's where there is one, else the host's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from llmkit.config.environment import cgroup_root

PROC_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, bytes."""

    total_bytes: int
    """The smallest limit that holds for this process."""
    source: str
    """``host``, or the file of the limit; for messages."""


def memory(root: Path | None = None, proc: Path = PROC_CGROUP) -> Memory:
    """The memory this process may use.

    :param root: where cgroups are mounted; default: ``LLMKIT_CGROUP_ROOT`` or /sys/fs/cgroup.
    :param proc: the file that says which cgroups this process is in.
    """
    smallest = Memory(psutil.virtual_memory().total, "host")
    for file in _memory_limits(root or cgroup_root(), proc):
        limit = _number(file)
        if limit is not None and 0 < limit < smallest.total_bytes:
            smallest = Memory(limit, str(file))
    return smallest


def cores(root: Path | None = None, proc: Path = PROC_CGROUP) -> int:
    """Cores this process may use: its affinity, cut by a CPU quota (rounded down, at least 1)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota in _cpu_quotas(root or cgroup_root(), proc):
        allowed = min(allowed, max(1, int(quota)))
    return allowed


def _memory_limits(root: Path, proc: Path) -> Iterator[Path]:
    """The file of every limit that holds for this process."""
    for folder in _folders(root, proc, ""):
        yield folder / "memory.max"
    for folder in _folders(root, proc, "memory"):
        yield folder / "memory.limit_in_bytes"


def _cpu_quotas(root: Path, proc: Path) -> Iterator[float]:
    """Cores that each limit on this process allows."""
    for folder in _folders(root, proc, ""):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])
    for folder in _folders(root, proc, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            yield quota / period


def _folders(root: Path, proc: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup of a v1 controller (of the v2 tree: ""), and its parents up to the mount.

    In a container the path in ``proc`` may be the host's, of which only the mount itself exists.
    """
    for line in _text(proc).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        top = root / controllers if controller and (root / controllers).is_dir() else root / controller
        folder = top / path.strip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError:  # a controller that is not mounted, or a path that is the host's
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None
