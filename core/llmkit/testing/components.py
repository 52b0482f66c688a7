"""A component for a compliance suite, found the way a server finds it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from llmkit.config import PluginConfig
from llmkit.plugins import load_plugins
from llmkit.registry import Registry


def create(
    kind: str, name: str, *specs: Any, plugin: str | None = None, options: Mapping[str, str] | None = None
) -> Any:
    """Make a registered component; skips the running test with its reason where it refuses.

    :param specs: what its factory takes before the plugin's options: one spec, or nothing for parsers.
    :param plugin: to enable, where the component is not built in.
    :param options: the plugin's options, as typed.
    """
    registry = _registry(kind, name, plugin, tuple(sorted((options or {}).items())))
    entry = registry.get(kind, name)
    reason = entry.refuses(*specs) if entry.refuses is not None else None
    if reason is not None:
        pytest.skip(f"{kind} {name} refuses: {reason}")
    return registry.create(kind, name, *specs)


@cache
def _registry(kind: str, name: str, plugin: str | None, options: tuple[tuple[str, str], ...]) -> Registry:
    config = PluginConfig(
        plugin=(plugin,) if plugin else (),
        plugin_option=tuple(f"{plugin}.{key}={value}" for key, value in options),
    )
    return load_plugins(config, {kind: name}).registry


__all__ = ["create"]
