"""Which plugins run."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmkit.config.fields import option
from llmkit.errors import UsageError


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """What was enabled, blocked and configured by name."""

    plugin: tuple[str, ...] = option((), "enable an installed plugin by name; may be repeated")
    plugin_option: tuple[str, ...] = option(
        (), "NAME.key=value for a plugin; may be repeated", metavar="NAME.KEY=VALUE", separator=None
    )
    block_plugin: tuple[str, ...] = option((), "never load this plugin; may be repeated")
    strict_plugins: bool = option(False, "a plugin that fails or is refused stops the start")
    override: tuple[str, ...] = option(
        (), "KIND:NAME=PLUGIN lets a plugin replace a built-in name", metavar="KIND:NAME=PLUGIN"
    )
    load: tuple[str, ...] = field(default=(), metadata={})
    """Set by the parent for its children: the plugins to load, by name, in this order."""

    def options(self) -> dict[str, dict[str, str]]:
        """``plugin_option`` by plugin and key; a later one wins.

        :raises UsageError: one is not NAME.key=value.
        """
        found: dict[str, dict[str, str]] = {}
        for text in self.plugin_option:
            target, equals, value = text.partition("=")
            name, dot, key = target.rpartition(".")
            if not (equals and dot and name and key):
                raise UsageError(f"--plugin-option {text!r}: write NAME.key=value")
            found.setdefault(name, {})[key] = value
        return found

    def overrides(self) -> dict[tuple[str, str], str]:
        """``override`` as (kind, name) -> plugin.

        :raises UsageError: one is not KIND:NAME=PLUGIN, or two are about the same name.
        """
        found: dict[tuple[str, str], str] = {}
        for text in self.override:
            target, _, plugin = text.partition("=")
            kind, _, name = target.partition(":")
            if not (kind and name and plugin):
                raise UsageError(f"--override {text!r}: write KIND:NAME=PLUGIN")
            if found.setdefault((kind, name), plugin) != plugin:
                raise UsageError(
                    f"--override: {kind}:{name} is given to both {found[kind, name]} and {plugin}"
                )
        return found
