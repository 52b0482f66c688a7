"""Running one plugin's ``register_*`` hooks, so that all it offers is known before any of it counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pluggy

from llmkit import hookspecs
from llmkit.errors import PluginError
from llmkit.registry import Entry
from llmkit.text import listing, nearest

KINDS: Mapping[str, str] = {
    "register_commands": "command",
    "register_model_sources": "source",
    "register_weight_loaders": "loader",
    "register_tokenizers": "tokenizer",
    "register_schedulers": "scheduler",
    "register_scheduling_policies": "policy",
    "register_executors": "executor",
    "register_speculators": "speculator",
    "register_kv_connectors": "connector",
    "register_models": "model",
    "register_linear_methods": "linear",
    "register_ops": "ops",
    "register_attention_backends": "attention",
    "register_grammar_backends": "grammar",
    "register_logits_processors": "processor",
    "register_worker_methods": "worker_method",
    "register_tool_parsers": "tool_parser",
    "register_reasoning_parsers": "reasoning_parser",
    "register_output_stages": "output_stage",
    "register_routes": "routes",
}
"""Hook -> kind of component it registers."""

ACTIVE_KINDS = frozenset({"routes", "processor", "worker_method"})
"""Kinds that run without being chosen by name: a third party's only when it is enabled."""

BY_NAME_KINDS = frozenset({"connector", "speculator"})
"""Kinds of which a server has none unless it asks for one by name."""

RECOGNIZING_KINDS = frozenset({"reasoning_parser", "tool_parser"})
"""Kinds of which ``auto`` takes the one that recognizes the model, if any does."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def hook_names() -> list[str]:
    """Every hook of the contract, in its order."""
    return [name for name, value in vars(hookspecs).items() if hasattr(value, "llmkit_spec")]


def new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("llmkit")
    manager.add_hookspecs(hookspecs)
    return manager


@dataclass(frozen=True, slots=True)
class Implementation:
    """One plugin's function for one hook."""

    hook_name: str
    plugin: str
    rank: int
    """-1 with ``tryfirst``, 1 with ``trylast``."""
    function: Callable[..., Any]
    takes: tuple[str, ...]
    options: Any = None
    """The plugin's; passed to a hook that takes ``options``."""

    def __call__(self, **arguments: Any) -> Any:
        """Call it with those of the hook's arguments that it takes."""
        given = {"options": self.options, **arguments}
        return self.function(**{name: given[name] for name in self.takes})


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one plugin offers, not in force yet."""

    entries: tuple[Entry, ...]
    active: tuple[Implementation, ...]
    """Its ``prepare_*`` hooks; empty unless it is enabled."""


def record(plugin: Any, owner: str, *, builtin: bool, enabled: bool) -> Recorded:
    """Check a plugin's hook implementations and run those that register.

    :param enabled: it is built-in or was named by ``--plugin``: ``auto`` may take its components, and
        it may serve routes and change requests.
    :raises PluginError: it implements a hook wrongly.

    Whatever a hook raises passes through.
    """
    recorder = _Recorder(owner, builtin=builtin, enabled=enabled)
    active = []
    for implementation in check(plugin, owner):
        kind = KINDS.get(implementation.hook_name)
        if not enabled and (kind is None or kind in ACTIVE_KINDS):
            continue
        if kind is None:
            active.append(implementation)
        else:
            recorder.run(kind, implementation)
    return Recorded(recorder.close(), tuple(active))


def check(plugin: Any, owner: str) -> list[Implementation]:
    """A plugin's implementations, in the order of the contract.

    :raises PluginError: an unknown hook or argument, an unmarked hook function, a wrapper, no hook at all.
    """
    manager = new_manager()
    known = hook_names()
    try:
        manager.register(plugin, owner)
    except pluggy.PluginValidationError as error:
        raise PluginError(" ".join(str(error).split())) from error
    implementations = []
    for caller in manager.get_hookcallers(plugin) or ():
        (hookimpl,) = caller.get_hookimpls()
        if not caller.has_spec():
            if hookimpl.optionalhook:
                continue
            guess = nearest(caller.name, known)
            hint = f"did you mean {guess!r}" if guess else f"known: {listing(known)}"
            raise PluginError(f"it implements {caller.name!r}, which is no hook of this llmkit; {hint}")
        if hookimpl.wrapper or hookimpl.hookwrapper:
            raise PluginError(f"its {caller.name!r} is a hook wrapper; llmkit has no use for those")
        rank = -1 if hookimpl.tryfirst else 1 if hookimpl.trylast else 0
        takes = tuple(hookimpl.argnames)
        implementations.append(Implementation(caller.name, owner, rank, hookimpl.function, takes))
    _check_unmarked(plugin, known, {implementation.hook_name for implementation in implementations})
    if not implementations:
        raise PluginError("it implements no hook; does its entry point name the right module?")
    return sorted(implementations, key=lambda implementation: known.index(implementation.hook_name))


def _check_unmarked(plugin: Any, known: list[str], marked: set[str]) -> None:
    """A function named as a hook but not marked would silently do nothing."""
    if not isinstance(plugin, ModuleType):
        return
    for name in known:
        if name not in marked and callable(vars(plugin).get(name)):
            raise PluginError(f"its function {name!r} lacks the mark @llmkit.hookimpl")


class _Recorder:
    """Owns what one plugin has registered so far; closed once its hooks have run."""

    def __init__(self, owner: str, *, builtin: bool, enabled: bool) -> None:
        self._owner = owner
        self._builtin = builtin
        self._enabled = enabled
        self._entries: list[Entry] = []
        self._open = True
        self._rank = 0

    def run(self, kind: str, implementation: Implementation) -> None:
        self._rank = implementation.rank
        implementation(register=self._register_for(kind))

    def close(self) -> tuple[Entry, ...]:
        self._open = False
        return tuple(self._entries)

    def _register_for(self, kind: str) -> Callable[..., None]:
        if kind in ("source", "scheduler", "policy", "output_stage", "worker_method"):
            return self._named(kind)
        if kind == "routes":
            return self._routes
        if kind == "command":
            return self._command
        if kind == "processor":
            return self._processor
        if kind in RECOGNIZING_KINDS:
            return self._recognizing(kind)
        if kind in BY_NAME_KINDS:
            return self._by_name(kind)
        return self._model if kind == "model" else self._choosable(kind)

    def _named(self, kind: str) -> Callable[..., None]:
        def register(name: str, factory: Callable[..., Any]) -> None:
            self._add(kind, name, factory)

        return register

    def _routes(
        self, name: str, factory: Callable[..., Any], *, failures: Callable[..., Any] | None = None
    ) -> None:
        self._add("routes", name, factory, failures=failures)

    def _choosable(self, kind: str) -> Callable[..., None]:
        def register(
            name: str,
            factory: Callable[..., Any],
            *,
            refuses: Callable[[Any], str | None],
            priority: int = 0,
        ) -> None:
            self._add(kind, name, factory, refuses=refuses, priority=priority)

        return register

    def _by_name(self, kind: str) -> Callable[..., None]:
        def register(name: str, factory: Callable[..., Any], *, refuses: Callable[[Any], str | None]) -> None:
            self._add(kind, name, factory, refuses=refuses, priority=-1)

        return register

    def _recognizing(self, kind: str) -> Callable[..., None]:
        def register(
            name: str,
            factory: Callable[..., Any],
            *,
            recognizes: Callable[[Any], str | None],
            priority: int = 0,
        ) -> None:
            self._add(kind, name, factory, recognizes=recognizes, priority=priority)

        return register

    def _model(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        architectures: tuple[str, ...],
        refuses: Callable[[Any], str | None],
        priority: int = 0,
    ) -> None:
        if isinstance(architectures, str) or not architectures:
            raise PluginError(f"model {name!r}: architectures is {architectures!r}, not a tuple of names")
        self._add(
            "model",
            name,
            factory,
            refuses=_for_architectures(tuple(architectures), refuses),
            priority=priority,
            architectures=tuple(architectures),
        )

    def _processor(self, name: str, factory: Callable[..., Any], *, check: Callable[[Any], Any]) -> None:
        self._add("processor", name, factory, check=check)

    def _command(self, name: str, command: Any, *, help: str) -> None:
        self._add("command", name, command, help=help)

    def _add(
        self,
        kind: str,
        name: str,
        factory: Any,
        *,
        refuses: Callable[[Any], str | None] | None = None,
        priority: int = 0,
        **traits: Any,
    ) -> None:
        if not self._open:
            raise PluginError(f"{kind} {name!r} was registered after the hook had returned")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "auto":
            raise PluginError(f"{kind} {name!r}: a name is letters, digits and . _ + -, and not 'auto'")
        if not callable(factory) and kind != "command":
            raise PluginError(f"{kind} {name!r}: its factory {factory!r} cannot be called")
        self._entries.append(
            Entry(
                kind,
                name,
                factory,
                self._owner,
                refuses=refuses,
                priority=priority,
                rank=self._rank,
                traits=traits,
                auto=self._enabled,
                builtin=self._builtin,
            )
        )


def _for_architectures(
    architectures: tuple[str, ...], refuses: Callable[[Any], str | None]
) -> Callable[[Any], str | None]:
    def check_architecture(spec: Any) -> str | None:
        architecture = spec.info.architecture
        if "*" not in architectures and architecture not in architectures:
            return f"it implements {listing(architectures)}, not {architecture}"
        return refuses(spec)

    return check_architecture
