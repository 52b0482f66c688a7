"""Which plugins run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmkit.config.fields import option


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """What was enabled, blocked and configured by name."""

    plugin: tuple[str, ...] = option((), "enable an installed plugin by name; may be repeated")
    plugin_option: tuple[str, ...] = option((), "NAME.key=value for a plugin; may be repeated")
    block_plugin: tuple[str, ...] = option((), "never load this plugin; may be repeated")
    strict_plugins: bool = option(False, "a plugin that fails or is refused stops the start")
    override: tuple[str, ...] = option((), "KIND:NAME=PLUGIN lets a plugin replace a built-in name")
    load: tuple[str, ...] = field(default=(), metadata={})
    """Set by the parent for its children: the plugins to load, by name, in this order."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict, metadata={})
    """``plugin_option`` parsed: plugin -> key -> value as typed."""
