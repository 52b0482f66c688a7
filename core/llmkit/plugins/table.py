"""What loading came to: the registry, the active hooks, and a row for every plugin there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from llmkit.plugins.recorder import Implementation
from llmkit.registry import Registry

State = Literal["loaded", "failed", "refused", "blocked", "idle"]
"""``failed``: its code raised. ``refused``: llmkit does not take it. ``blocked``: by ``--block-plugin``.
``idle``: installed, and nothing asked for it."""


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One row of ``llmkit plugins list``."""

    name: str
    state: State
    cause: str | None
    """Why it failed, was refused or blocked."""
    distribution: str
    version: str
    builtin: bool
    enabled: bool
    """Built-in, or named by ``--plugin``: ``auto`` may take its components, its active hooks run."""
    registered: tuple[str, ...]
    """``kind:name`` of each component, then its active hooks."""


class Plugins:
    """The plugins of one process; read only."""

    def __init__(
        self,
        registry: Registry,
        rows: Iterable[PluginRow],
        names: Iterable[str],
        active: Iterable[Implementation],
    ) -> None:
        self.registry = registry
        self._rows = list(rows)
        self.names = tuple(names)
        """Those loaded, in order: what a child process gets as ``PluginConfig.load``."""
        self._active = sorted(active, key=lambda implementation: implementation.rank)

    def table(self) -> list[PluginRow]:
        """Built-ins, then third parties in the order they were loaded, then the others by name."""
        return list(self._rows)

    def implementations(self, hook_name: str) -> list[Implementation]:
        """Those of a ``prepare_*`` hook that run, in order: built-ins' and enabled plugins' only."""
        return [implementation for implementation in self._active if implementation.hook_name == hook_name]
