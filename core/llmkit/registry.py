"""Named factories of every kind, and the choice among them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmkit.errors import DuplicateName, LlmkitError, StartupError, UnknownName
from llmkit.messages import Choice
from llmkit.text import listing, nearest

CORE = "llmkit"
"""Owner of what the core itself registers."""

FLAGS: Mapping[str, str] = {
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
    "grammar": "--grammar-backend",
    "speculator": "--speculator",
    "tool_parser": "--tool-call-parser",
    "reasoning_parser": "--reasoning-parser",
    "output_stage": "--output-stage",
    "connector": "--kv-connector",
    "processor": "plugin_args",
    "worker_method": "--plugin",
    "routes": "--plugin",
    "command": "COMMAND",
}
"""Component kind -> what chooses among its names."""

NOUNS: Mapping[str, str] = {
    "source": "model source",
    "loader": "weight loader",
    "model": "model implementation",
    "linear": "linear method",
    "ops": "set of operations",
    "processor": "logits processor",
    "worker_method": "worker method",
    "attention": "attention backend",
    "policy": "scheduling policy",
    "grammar": "grammar backend",
    "connector": "KV connector",
    "tool_parser": "tool-call parser",
    "reasoning_parser": "reasoning parser",
    "output_stage": "output stage",
}
"""Component kind -> what a message calls one, where that is not the kind itself."""

LATER: Mapping[str, frozenset[str]] = {
    "executor": frozenset({"multiproc", "ray"}),
    "attention": frozenset({"paged-cuda"}),
}
"""Names that users of other engines or readers of the plan ask for, and that nobody registers yet."""

CORE_NAMES: Mapping[str, frozenset[str]] = {
    "scheduler": frozenset({"continuous"}),
    "worker_method": frozenset({"describe"}),
}
"""Names that the core itself registers in the process that needs them; protected like a built-in's."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered component."""

    kind: str
    name: str
    factory: Callable[..., Any]
    owner: str
    """The plugin that registered it, or ``CORE``."""
    refuses: Callable[[Any], str | None] | None = None
    priority: int = 0
    """Among those that do not refuse, ``auto`` takes the highest; below 0 it takes none. Among those that
    recognize a model, it takes the highest whatever it is."""
    rank: int = 0
    """Among equal priorities: -1 goes first (``tryfirst``), 1 last (``trylast``), then load order."""
    traits: Mapping[str, Any] = field(default_factory=dict)
    """What a kind registers besides: a command's ``help``, a model's ``architectures``."""
    auto: bool = True
    """Whether ``auto`` may take it: built-in, or its plugin was enabled by name."""
    builtin: bool = False
    """Its name is protected: nobody else gets it without ``--override``."""

    @property
    def address(self) -> str:
        """``PLUGIN/NAME``: reaches it whoever else has its name."""
        return f"{self.owner}/{self.name}"

    @property
    def protected(self) -> bool:
        return self.builtin or self.owner == CORE


class Registry:
    """Owns the table of components of one process; filled at start, then read only.

    A name is one component's unless two third parties share it: then each is reached by
    ``PLUGIN/NAME`` only. ``overrides`` maps (kind, name) to the plugin that gets the plain name, from
    a built-in or from another third party; the loser keeps its ``PLUGIN/NAME``.
    """

    def __init__(self, overrides: Mapping[tuple[str, str], str] | None = None) -> None:
        self._entries: list[Entry] = []
        self._options: dict[str, Any] = {}
        self._overrides = dict(overrides or {})

    # ---- filling ----

    def add(self, entries: Iterable[Entry], options: Any = None) -> None:
        """Take all that one plugin registers, or nothing.

        :raises DuplicateName: a name is taken; the message names both owners.
        """
        batch: list[Entry] = []
        for entry in entries:
            self._check_free(entry, [*self._entries, *batch])
            batch.append(entry)
        self._entries += batch
        for entry in batch:
            self._options[entry.owner] = options

    def _check_free(self, entry: Entry, taken: Iterable[Entry]) -> None:
        holders = [e for e in taken if (e.kind, e.name) == (entry.kind, entry.name)]
        given_to = self._overrides.get((entry.kind, entry.name))
        for holder in holders:
            if holder.owner == entry.owner:
                raise DuplicateName(
                    f"plugin {entry.owner!r} registers {noun(entry.kind)} {entry.name!r} more than once"
                )
            if (holder.protected or entry.protected) and given_to not in (entry.owner, holder.owner):
                whose = "built-in plugin" if holder.protected else "plugin"
                raise DuplicateName(self._taken(entry, f"{whose} {holder.owner!r}"))
        core_name = entry.name in CORE_NAMES.get(entry.kind, ())
        if core_name and not entry.protected and given_to != entry.owner:
            raise DuplicateName(self._taken(entry, "llmkit itself"))

    @staticmethod
    def _taken(entry: Entry, holder: str) -> str:
        return (
            f"plugin {entry.owner!r} registers {noun(entry.kind)} {entry.name!r}, a name that {holder} has; "
            f"--override {entry.kind}:{entry.name}={entry.owner} would give it away"
        )

    # ---- reading ----

    def entries(self, kind: str) -> list[Entry]:
        """Those of one kind that nobody replaced, best priority first, then by rank, then as loaded."""
        present = [e for e in self._entries if e.kind == kind and not self._replaced(e)]
        return sorted(present, key=lambda entry: (-entry.priority, entry.rank))

    def names(self, kind: str) -> list[str]:
        """What :meth:`get` takes for each of :meth:`entries`, in its order."""
        return [self.name_of(entry) for entry in self.entries(kind)]

    def name_of(self, entry: Entry) -> str:
        """The plain name where it is this entry's, else ``PLUGIN/NAME``."""
        return entry.name if self._plain(entry.kind, entry.name) == [entry] else entry.address

    def find(self, kind: str, name: str) -> Entry | None:
        """The entry that ``name`` or ``PLUGIN/NAME`` reaches, None where none or more than one does."""
        if "/" in name:
            return next((e for e in self._entries if e.kind == kind and e.address == name), None)
        holders = self._plain(kind, name)
        return holders[0] if len(holders) == 1 else None

    def get(self, kind: str, name: str) -> Entry:
        """:raises UnknownName: with the known names and the nearest, or those that share ``name``."""
        entry = self.find(kind, name)
        if entry is not None:
            return entry
        flag, called = FLAGS.get(kind, kind), noun(kind)
        shared = self._plain(kind, name)
        if shared:
            addresses = listing(e.address for e in shared)
            raise UnknownName(f"{flag}: several plugins offer {called} {name!r}; write one of {addresses}")
        known = self.names(kind)
        if name in LATER.get(kind, ()):
            raise UnknownName(f"{flag}: {called} {name!r} is not supported yet. Known: {listing(known)}")
        guess = nearest(name, known)
        hint = f"; did you mean {guess!r}?" if guess else "."
        raise UnknownName(f"{flag}: no {called} is called {name!r}{hint} Known: {listing(known)}")

    def choose(self, kind: str, requested: str, spec: Any) -> Choice:
        """Resolve a name or ``auto`` for ``spec``.

        :raises UnknownName: nobody registered it.
        :raises StartupError: it refuses, or under ``auto`` all do; with each one's reason.
        """
        if requested != "auto":
            entry = self.get(kind, requested)
            reason = _refusal(entry, spec)
            if reason is not None:
                raise StartupError(self._refused(entry, reason, spec))
            return Choice(kind, self.name_of(entry), "by name")
        passed_over: list[tuple[str, str]] = []
        for entry in self.entries(kind):
            reason = _passed_over(entry, spec)
            if reason is None:
                return Choice(kind, self.name_of(entry), "auto", tuple(passed_over))
            passed_over.append((self.name_of(entry), reason))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over) or "none is registered"
        raise StartupError(
            f"{FLAGS.get(kind, kind)} auto: no {noun(kind)} can serve this model here ({reasons})"
        )

    def recognized(self, kind: str, requested: str, hints: Any) -> Choice | None:
        """Resolve a name, or ``auto`` to the first that recognizes what ``hints`` say; None where none does.

        :raises UnknownName: nobody registered it.
        """
        if requested != "auto":
            return Choice(kind, self.name_of(self.get(kind, requested)), "by name")
        for entry in self.entries(kind):
            why = _recognition(entry, hints) if entry.auto else None
            if why is not None:
                return Choice(kind, self.name_of(entry), f"auto: {why}")
        return None

    def usable(self, kind: str, spec: Any) -> list[str]:
        """Every name that ``auto`` may take for ``spec``, best first; for kinds that combine several."""
        return [self.name_of(entry) for entry in self.entries(kind) if _passed_over(entry, spec) is None]

    def create(self, kind: str, name: str, *specs: Any) -> Any:
        """Call a component's factory with ``specs`` and its plugin's options.

        What it raises passes through, with a note that names the plugin.
        """
        entry = self.get(kind, name)
        try:
            return entry.factory(*specs, self._options.get(entry.owner))
        except Exception as error:
            error.add_note(f"while plugin {entry.owner!r} made {kind} {name!r}")
            raise

    # ---- names ----

    def _plain(self, kind: str, name: str) -> list[Entry]:
        """Those that claim the plain name: one, unless third parties share it."""
        return [e for e in self._entries if (e.kind, e.name) == (kind, name) and not self._replaced(e)]

    def _replaced(self, entry: Entry) -> bool:
        """Whether ``--override`` gave its name to another plugin, and that one is here."""
        winner = self._overrides.get((entry.kind, entry.name))
        if winner is None or winner == entry.owner:
            return False
        return any((e.kind, e.name, e.owner) == (entry.kind, entry.name, winner) for e in self._entries)

    def _refused(self, entry: Entry, reason: str, spec: Any) -> str:
        usable = [
            self.name_of(other)
            for other in self.entries(entry.kind)
            if other is not entry and _refusal(other, spec) is None
        ]
        return (
            f"{FLAGS.get(entry.kind, entry.kind)} {entry.name}: {entry.owner} cannot be used here: "
            f"{reason}. Usable: {listing(usable)}"
        )


def noun(kind: str) -> str:
    """A component kind in a message's words."""
    return NOUNS.get(kind, kind)


def _passed_over(entry: Entry, spec: Any) -> str | None:
    """Why ``auto`` does not take this one for ``spec``, or None."""
    if entry.priority < 0:
        return "only when asked for by name"
    if not entry.auto:
        return f"plugin {entry.owner!r} is not enabled"
    return _refusal(entry, spec)


def _recognition(entry: Entry, hints: Any) -> str | None:
    """Why the component takes the model for its own; one whose check fails does not."""
    try:
        why: str | None = entry.traits["recognizes"](hints)
    except Exception:  # noqa: BLE001 - a plugin's code, quarantined: the log says it
        _log.warning("%s %s: its check failed", entry.kind, entry.address, exc_info=True)
        return None
    return why


def _refusal(entry: Entry, spec: Any) -> str | None:
    """What the component says against ``spec``; a check that fails is a reason, not a crash."""
    if entry.refuses is None:
        return None
    try:
        return entry.refuses(spec)
    except LlmkitError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a plugin's code, quarantined: the reason is shown
        _log.warning("%s %s: its check failed", entry.kind, entry.address, exc_info=True)
        return f"its check failed with {type(error).__name__}: {error}"
