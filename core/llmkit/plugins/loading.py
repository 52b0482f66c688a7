"""Loading the plugins of a process: which, in what order, and what happens to one that does not work."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmkit.config import PluginConfig
from llmkit.errors import DuplicateName, PluginError, UnknownName, UsageError
from llmkit.plugins.discovery import Installed, api_refusal, from_path, installed
from llmkit.plugins.options import fill_options, options_class_of
from llmkit.plugins.recorder import Recorded, record
from llmkit.plugins.table import PluginRow, Plugins, State
from llmkit.registry import CORE_NAMES, FLAGS, Entry, Registry
from llmkit.text import listing, nearest

_log = logging.getLogger(__name__)

_CAUSE_CHARACTERS = 500

_OPEN_KINDS = frozenset({"source", "command"})
"""Kinds where a name that no plugin has may still mean something to whoever asked."""


def load_plugins(
    config: PluginConfig,
    needed: Mapping[str, str | tuple[str, ...]] | None = None,
    *,
    import_all: bool = False,
) -> Plugins:
    """Load built-ins, the enabled, and those that may offer what is ``needed``.

    Every process calls this once, before any name is resolved. The parent gives its
    :attr:`Plugins.names` to its children as ``config.load``: they load exactly these, in this order.
    Calling it again gives the same result; nothing is kept between calls.

    :param needed: component kind -> as asked for (``auto``, ``NAME``, ``PLUGIN/NAME``, or several). A name
        that no built-in or enabled plugin has makes the other third parties be imported that say they
        offer the kind, or do not say what they offer.
    :param import_all: import every installed plugin, to list what each offers or why it does not
        work; one that nothing asked for is ``idle`` all the same.

    :raises UsageError: what was asked for by name is missing, blocked, failed or was refused.
    :raises UnknownName: nobody offers a needed name.
    :raises PluginError: with ``strict_plugins``, any plugin failed or was refused.
    """
    loader = _Loader(config)
    wanted = [] if config.load else _pairs(needed or {})
    if config.load:
        for name in config.load:
            loader.require(name, "loaded by the parent process")
    else:
        loader.load_builtins()
        loader.load_requested()
        for kind, name in wanted:
            loader.load_for(kind, name)
        if import_all:
            loader.load_all()
    loader.finish(wanted)
    return loader.result()


@dataclass(slots=True)
class _Record:
    """One plugin's way through loading; the loader alone changes it."""

    plugin: Installed
    enabled: bool = False
    state: State = "idle"
    cause: str | None = None
    wanted_by: str | None = None
    """What asked for it by name; then its failure is fatal."""
    ambiguous: bool = False
    """Another distribution gives a plugin the same name: only its module path says which."""
    options: Any = None
    recorded: Recorded | None = None
    only_listed: bool = False
    """Imported to see whether it works; nothing asked for it."""

    @property
    def name(self) -> str:
        return self.plugin.name

    @property
    def broken(self) -> bool:
        return self.state in ("failed", "refused")

    @property
    def line(self) -> str:
        return f"plugin {self.name!r} ({self.plugin.source}) {self.state}: {self.cause}"

    @property
    def fatal_line(self) -> str:
        """Why a start that needs it fails; an error of its options says itself which one."""
        cause = self.cause or ""
        return cause if cause.startswith("--plugin-option ") else f"{self.wanted_by}: {self.line}"

    def stop(self, state: State, cause: str) -> None:
        """It takes no part, for this reason (cut to one line)."""
        self.state = state
        self.cause = " ".join(cause.split())[:_CAUSE_CHARACTERS]


class _Loader:
    """Owns the registry and every plugin's record until loading is done."""

    def __init__(self, config: PluginConfig) -> None:
        self._config = config
        self._records: list[_Record] = []
        self._loaded: list[_Record] = []
        for plugin in installed():
            self._file(plugin)
        self._enabled = [self._resolve(name, f"--plugin {name}") for name in config.plugin]
        for record_ in self._enabled:
            record_.enabled = True
        self._given = {
            self._resolve(name, f"--plugin-option {name}").name: values
            for name, values in config.options().items()
        }
        self._overrides = {
            (_known_kind(kind), name): self._resolve(plugin, f"--override {kind}:{name}={plugin}").name
            for (kind, name), plugin in config.overrides().items()
        }
        self._registry = Registry(self._overrides)
        for name in config.block_plugin:
            self._block(name)

    # ---- which plugins ----

    def load_builtins(self) -> None:
        for record_ in [r for r in self._records if r.plugin.builtin]:
            self._load(record_)

    def load_requested(self) -> None:
        """Those named on the command line: the enabled in their order, then the merely configured."""
        for record_ in self._enabled:
            self.require(record_.name, f"--plugin {record_.name}")
        for name, values in self._given.items():
            self.require(name, f"--plugin-option {name}.{next(iter(values))}")
        for (kind, name), plugin in self._overrides.items():
            self.require(plugin, f"--override {kind}:{name}={plugin}")

    def require(self, name: str, wanted_by: str) -> None:
        """Load the plugin of this name or module path; unless it works, :meth:`finish` is fatal."""
        found = self._resolve(name, wanted_by)
        found.wanted_by = found.wanted_by or wanted_by
        self._load(found)

    def load_for(self, kind: str, name: str) -> None:
        """Import what may offer a component that is not here yet."""
        plugin, slash, _ = name.rpartition("/")
        if slash:
            self.require(plugin, f"{FLAGS.get(kind, kind)} {name}")
        elif not self._is_known(kind, name):
            for candidate in list(self._records):
                if candidate.plugin.offers(kind):
                    self._load(candidate)

    def load_all(self) -> None:
        for candidate in [r for r in self._records if r.state == "idle"]:
            candidate.only_listed = True
            self._load(candidate)

    # ---- the end ----

    def finish(self, needed: Sequence[tuple[str, str]]) -> None:
        """Tell of what does not work, and refuse to go on where it matters."""
        broken = [r for r in self._records if r.broken]
        if self._config.strict_plugins and broken and not self._config.load:
            lines = "; ".join(r.line for r in broken)
            raise PluginError(f"--strict-plugins: {len(broken)} of the plugins cannot be used: {lines}")
        fatal = [r for r in self._records if r.wanted_by and r.state != "loaded"]
        if fatal:
            raise UsageError("; ".join(r.fatal_line for r in fatal))
        for (kind, name), plugin in self._overrides.items():
            self._check_override(kind, name, plugin)
        for kind, name in needed:
            if kind not in _OPEN_KINDS and not self._is_known(kind, name):
                self._unknown(kind, name, broken)
        if self._config.load:
            return  # the parent has told of the others
        for record_ in broken:
            _log.warning("%s; it is left out (--block-plugin %s hides this)", record_.line, record_.name)

    def result(self) -> Plugins:
        others = [r for r in self._records if r.state != "loaded"]
        return Plugins(
            self._registry,
            [self._row(r) for r in sorted([*self._loaded, *others], key=lambda r: not r.plugin.builtin)],
            [r.name for r in self._loaded],
            [
                replace(implementation, options=r.options)
                for r in self._loaded
                if r.recorded is not None
                for implementation in r.recorded.active
            ],
        )

    def _check_override(self, kind: str, name: str, plugin: str) -> None:
        entry = self._registry.find(kind, name)
        if entry is None or entry.owner != plugin:
            own = listing(e.name for e in self._registry.entries(kind) if e.owner == plugin)
            raise UsageError(
                f"--override {kind}:{name}={plugin}: plugin {plugin!r} registers no {kind} {name!r}; of this "
                f"kind it registers: {own}"
            )

    def _unknown(self, kind: str, name: str, broken: Sequence[_Record]) -> None:
        try:
            self._registry.get(kind, name)
        except UnknownName as error:
            suspects = "; ".join(r.line for r in broken if r.plugin.offers(kind))
            raise UnknownName(f"{error}. {suspects}" if suspects else str(error)) from None

    def _row(self, record_: _Record) -> PluginRow:
        plugin, recorded = record_.plugin, record_.recorded
        offers: list[str] = []
        if recorded is not None:
            offers += [self._shown(entry) for entry in recorded.entries]
            offers += [implementation.hook_name for implementation in recorded.active]
        return PluginRow(
            plugin.name,
            "idle" if record_.only_listed and record_.state == "loaded" else record_.state,
            record_.cause,
            plugin.distribution,
            plugin.version,
            plugin.builtin,
            record_.enabled,
            tuple(offers),
        )

    def _shown(self, entry: Entry) -> str:
        winner = self._overrides.get((entry.kind, entry.name))
        note = "" if winner is None else " (override)" if winner == entry.owner else " (overridden)"
        return f"{entry.kind}:{entry.name}{note}"

    # ---- one plugin ----

    def _file(self, plugin: Installed) -> None:
        """Take it into the list, or refuse it for what its metadata says."""
        new = _Record(plugin, enabled=plugin.builtin)
        namesakes = [r for r in self._records if r.name == plugin.name]
        twin = next((r for r in self._records if r.plugin.target == plugin.target), None)
        self._records.append(new)
        refusal = api_refusal(plugin)
        if any(r.plugin.builtin for r in namesakes):
            new.ambiguous = True
            new.stop("refused", "a built-in plugin has its name; say which by module: --plugin MODULE")
        elif twin is not None:
            new.stop("refused", f"its module {plugin.target} is plugin {twin.name!r} already")
        elif refusal is not None:
            new.stop("refused", refusal)
        elif namesakes:
            for record_ in (*namesakes, new):
                record_.ambiguous = True
                owners = listing(r.plugin.distribution for r in (*namesakes, new))
                record_.stop(
                    "refused", f"{owners} all call a plugin so; say which by module: --plugin MODULE"
                )

    def _resolve(self, name: str, wanted_by: str) -> _Record:
        """By entry-point name, else by module path; :raises UsageError: it is neither."""
        for record_ in self._records:
            if name == record_.name or (name == record_.plugin.target and not record_.ambiguous):
                return record_
        ambiguous = next((r.plugin for r in self._records if r.plugin.target == name), None)
        plugin = replace(ambiguous, name=name) if ambiguous else from_path(name)
        if plugin is None:
            known = [r.name for r in self._records]
            guess = nearest(name, known)
            hint = f"; did you mean {guess!r}?" if guess else "."
            raise UsageError(
                f"{wanted_by}: no plugin {name!r} is installed{hint} Installed: {listing(known)}"
            )
        new = _Record(plugin)
        refusal = api_refusal(plugin)
        if refusal is not None:
            new.stop("refused", refusal)
        self._records.append(new)
        return new

    def _block(self, name: str) -> None:
        blocked = [r for r in self._records if name in (r.name, r.plugin.target)]
        if not blocked:
            _log.warning("--block-plugin %s: no plugin of this name is installed", name)
        for record_ in blocked:
            record_.stop("blocked", "by --block-plugin")

    def _load(self, target: _Record) -> None:
        """Import it and take all it registers, or nothing; done once, whatever comes of it."""
        if target.state != "idle":
            return
        try:
            module = target.plugin.load()
            options_class = options_class_of(module)
            recorded = record(module, target.name, builtin=target.plugin.builtin, enabled=target.enabled)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code; shown with its cause
            cause = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            target.stop("failed", cause)
            _log.debug("plugin %r", target.name, exc_info=error)
            return
        try:
            target.options = fill_options(target.name, options_class, self._given.get(target.name, {}))
            self._registry.add([self._chosen(entry) for entry in recorded.entries], target.options)
        except DuplicateName as error:
            target.stop("refused", str(error))
        except UsageError as error:
            target.stop("failed", str(error))
        else:
            target.state, target.recorded = "loaded", recorded
            self._loaded.append(target)

    def _chosen(self, entry: Entry) -> Entry:
        """``--override`` chose it by name, so ``auto`` may take it where it took what it replaces."""
        overrides = self._overrides.get((entry.kind, entry.name)) == entry.owner
        return replace(entry, auto=True) if overrides else entry

    def _is_known(self, kind: str, name: str) -> bool:
        if name == "auto" or name in CORE_NAMES.get(kind, ()):
            return True
        return self._registry.find(kind, name) is not None


def _pairs(needed: Mapping[str, str | tuple[str, ...]]) -> list[tuple[str, str]]:
    """Kind and name, one a name."""
    return [
        (kind, name)
        for kind, names in needed.items()
        for name in ((names,) if isinstance(names, str) else names)
    ]


def _known_kind(kind: str) -> str:
    if kind in FLAGS:
        return kind
    guess = nearest(kind, FLAGS)
    hint = f"; did you mean {guess!r}?" if guess else "."
    raise UsageError(f"--override: no kind of component is called {kind!r}{hint} Known: {listing(FLAGS)}")
