"""Named methods of a worker, called between steps: its own and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llmkit.contracts import Components, Model
from llmkit.errors import EngineError, PluginError
from llmkit.text import listing

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Handle:
    """A ``WorkerHandle``."""

    model: Model
    rank: int
    device: str


class Methods:
    """Owns a worker's methods by name."""

    def __init__(self, own: dict[str, Method]) -> None:
        self._own = frozenset(own)
        self._methods = dict(own)

    def add_plugins(self, components: Components, handle: Handle) -> None:
        """Make what built-ins and enabled plugins offer.

        :raises PluginError: one has a name of the worker's own.
        """
        for name in components.usable("worker_method", None):
            if name in self._own:
                raise PluginError(
                    f"worker method {name!r} is the worker's own; a plugin's needs another name"
                )
            self._methods[name] = components.create("worker_method", name, handle)

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """What crosses processes must be msgpack, so it is here too.

        :raises EngineError: there is no such method, it failed, or gave something else.
        """
        method = self._methods.get(name)
        if method is None:
            raise EngineError(f"no worker method is called {name!r}; known: {listing(sorted(self._methods))}")
        try:
            return _copied(method(*_copied(list(args))))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"worker method {name!r} failed: {type(error).__name__}: {error}") from error


def _copied(value: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
