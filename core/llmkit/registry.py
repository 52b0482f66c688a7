"""Named factories of every kind, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmkit.errors import DuplicateName, StartupError, UnknownName
from llmkit.messages import Choice
from llmkit.text import listing, nearest

CORE = "llmkit"
"""Owner of what the core itself registers."""

FLAGS = {
    "source": "MODEL",
    "loader": "--load-format",
    "tokenizer": "--tokenizer-mode",
    "model": "--model-impl",
    "linear": "--quantization",
    "ops": "ops",
    "attention": "--attn",
    "executor": "--executor",
    "policy": "--scheduling-policy",
    "scheduler": "--scheduler",
    "routes": "--plugin",
    "command": "COMMAND",
}
"""Component kind -> what chooses among its names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered component."""

    kind: str
    name: str
    factory: Callable[..., Any]
    owner: str
    """The plugin that registered it."""
    refuses: Callable[[Any], str | None] | None = None
    priority: int = 0
    traits: Mapping[str, Any] = field(default_factory=dict)
    auto: bool = True
    """Whether ``auto`` may take it: built-in, or its plugin was enabled by name."""


class Registry:
    """Owns the table of components of one process; filled by the plugin manager, then read only."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._options: dict[str, Any] = {}

    def add(self, entries: Iterable[Entry], options: Any = None) -> None:
        """Take all that one plugin registers, or nothing.

        :raises DuplicateName: a name of it is taken.
        """
        batch: dict[tuple[str, str], Entry] = {}
        for entry in entries:
            key = (entry.kind, entry.name)
            holder = batch.get(key) or self._entries.get(key)
            if holder is not None:
                raise DuplicateName(
                    f"{entry.kind} {entry.name!r} of plugin {entry.owner!r} is already registered by "
                    f"plugin {holder.owner!r}"
                )
            batch[key] = entry
        self._entries |= batch
        for owner in {entry.owner for entry in batch.values()}:
            self._options[owner] = options

    def entries(self, kind: str) -> list[Entry]:
        """Those of one kind, best priority first, then in order of registration."""
        return sorted((e for e in self._entries.values() if e.kind == kind), key=lambda e: -e.priority)

    def names(self, kind: str) -> list[str]:
        return [entry.name for entry in self.entries(kind)]

    def get(self, kind: str, name: str) -> Entry:
        """:raises UnknownName: with the known names and the nearest."""
        entry = self._entries.get((kind, name))
        if entry is not None:
            return entry
        known = self.names(kind)
        guess = nearest(name, known)
        hint = f"; did you mean {guess!r}?" if guess else "."
        flag = FLAGS.get(kind, kind)
        raise UnknownName(f"{flag}: no {kind} is called {name!r}{hint} Known: {listing(known)}")

    def choose(self, kind: str, requested: str, spec: Any) -> Choice:
        """Resolve a name or ``auto`` for ``spec``.

        :raises UnknownName: nobody registered it.
        :raises StartupError: it refuses, or under ``auto`` all do; with each one's reason.
        """
        if requested != "auto":
            entry = self.get(kind, requested)
            reason = entry.refuses(spec) if entry.refuses else None
            if reason is not None:
                raise StartupError(self._refusal(kind, entry, reason, spec))
            return Choice(kind, entry.name, "asked for")
        passed_over: list[tuple[str, str]] = []
        for entry in self.entries(kind):
            if entry.priority < 0:
                reason = "only when asked for by name"
            elif not entry.auto:
                reason = f"plugin {entry.owner!r} is not enabled"
            else:
                reason = entry.refuses(spec) if entry.refuses else None
            if reason is None:
                return Choice(kind, entry.name, "auto", tuple(passed_over))
            passed_over.append((entry.name, reason))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over) or "none is registered"
        raise StartupError(f"{FLAGS.get(kind, kind)} auto: no {kind} can serve this model here ({reasons})")

    def create(self, kind: str, name: str, spec: Any) -> Any:
        """Call a component's factory with ``spec`` and its plugin's options."""
        entry = self.get(kind, name)
        return entry.factory(spec, self._options.get(entry.owner))

    def options(self, owner: str) -> Any:
        """A plugin's frozen options object, None if it declares none."""
        return self._options.get(owner)

    def _refusal(self, kind: str, entry: Entry, reason: str, spec: Any) -> str:
        usable = [
            other.name
            for other in self.entries(kind)
            if other is not entry and (other.refuses is None or other.refuses(spec) is None)
        ]
        return (
            f"{FLAGS.get(kind, kind)} {entry.name}: {entry.owner} cannot serve this model here: {reason}. "
            f"Usable: {listing(usable)}"
        )
