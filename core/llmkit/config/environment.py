"""``LLMKIT_*`` variables: which set config fields, which Kubernetes put there, which nobody knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmkit.config.flags import PREFIX, Flag
from llmkit.text import nearest

CACHE_DIR = "LLMKIT_CACHE_DIR"
CGROUP_ROOT = "LLMKIT_CGROUP_ROOT"

OTHER_VARIABLES: Mapping[str, str] = {
    CACHE_DIR: "where llmkit writes at run time; default: llmkit under $XDG_CACHE_HOME or ~/.cache",
    CGROUP_ROOT: "where the cgroup file system is mounted, from which memory and CPU limits are read; "
    "default: /sys/fs/cgroup",
}
"""Variables that are no config field: they matter before there is a configuration."""

_KUBERNETES = (
    re.compile(r"LLMKIT_(?:.+_)?SERVICE_HOST"),
    re.compile(r"LLMKIT_(?:.+_)?SERVICE_PORT(?:_.+)?"),
    re.compile(r"LLMKIT_(?:.+_)?PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?"),
)
_KUBERNETES_URL = re.compile(r"(?:tcp|udp|sctp)://.*")


@dataclass(frozen=True, slots=True)
class Environment:
    """The ``LLMKIT_*`` variables of a process, sorted out."""

    values: Mapping[str, str]
    """Config field -> text."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def read(environ: Mapping[str, str], flags: Iterable[Flag]) -> Environment:
    """Sort out ``environ``; values are not converted yet."""
    fields = {flag.variable: flag.field for flag in flags}
    values: dict[str, str] = {}
    kubernetes: list[str] = []
    warnings: list[str] = []
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        if _is_kubernetes(name, text):
            kubernetes.append(name)
        elif name in fields:
            values[fields[name]] = text
        else:
            guess = nearest(name, [*fields, *OTHER_VARIABLES])
            hint = f"; did you mean {guess}?" if guess else ""
            warnings.append(f"environment: {name} is no variable of llmkit and is ignored{hint}")
    notes = (_kubernetes_note(kubernetes),) if kubernetes else ()
    return Environment(values, notes, tuple(warnings))


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where llmkit writes what it may lose; not created here.

    None where nothing says: no variable, and a user without a home, as containers may have.
    """
    given = environ.get(CACHE_DIR)
    if given:
        return Path(given)
    base = environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "llmkit"
    try:
        return Path.home() / ".cache" / "llmkit"
    except RuntimeError:
        return None


def cgroup_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the cgroup file system is mounted."""
    return Path(environ.get(CGROUP_ROOT) or "/sys/fs/cgroup")


def _is_kubernetes(name: str, text: str) -> bool:
    """Kubernetes injects these into every pod for each service whose name begins with ``llmkit``."""
    if any(pattern.fullmatch(name) for pattern in _KUBERNETES):
        return True
    return name.endswith("_PORT") and _KUBERNETES_URL.fullmatch(text) is not None


def _kubernetes_note(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"environment: ignored what Kubernetes sets for a service called llmkit: {shown}"
