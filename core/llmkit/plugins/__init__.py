"""Finding, loading and listing plugins; :func:`load_plugins` is called once in every process."""

from llmkit.plugins.loading import load_plugins
from llmkit.plugins.table import PluginRow, Plugins, State

__all__ = ["PluginRow", "Plugins", "State", "load_plugins"]
