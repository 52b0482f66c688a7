"""What is installed, from metadata alone: nothing of a plugin is imported here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from llmkit import PLUGIN_API
from llmkit.version import VERSION

GROUP = "llmkit"
"""Entry-point group of every plugin, built-in or not."""
DISTRIBUTION = "llmkit"
"""Entry points of this distribution are the built-ins."""

_API_KEYWORD = "llmkit-api:"
_KIND_KEYWORD = "llmkit-kind:"
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?")


@dataclass(frozen=True, slots=True)
class Installed:
    """A plugin as its distribution's metadata describes it."""

    name: str
    target: str
    """``package.module`` or ``package.module:attribute``."""
    distribution: str = ""
    """Empty for a module that was named by its path and belongs to no known distribution."""
    version: str = ""
    api: tuple[str, ...] | None = ()
    """Versions of the plugin contract it was written for; None where there is no metadata to say."""
    kinds: frozenset[str] = frozenset()
    """Kinds of component it says it offers; empty means it does not say."""

    @property
    def builtin(self) -> bool:
        return self.distribution == DISTRIBUTION and self.api == ()

    @property
    def source(self) -> str:
        """For messages: distribution and version, or the module."""
        return f"{self.distribution} {self.version}" if self.distribution else f"module {self.target}"

    def offers(self, kind: str) -> bool:
        """Whether it may offer this kind: it says so, or says nothing."""
        return not self.kinds or kind in self.kinds

    def load(self) -> Any:
        """Import it; raises whatever its module raises."""
        return EntryPoint(self.name, self.target, GROUP).load()


def installed() -> list[Installed]:
    """Every plugin in this environment: built-ins first, each part sorted by name."""
    found = [_describe(entry_point) for entry_point in entry_points(group=GROUP)]
    return sorted(found, key=lambda plugin: (not plugin.builtin, plugin.name, plugin.distribution))


def from_path(path: str) -> Installed | None:
    """The plugin behind a dotted module path, None if ``path`` is not one."""
    if not _MODULE_PATH.fullmatch(path):
        return None
    if path.split(".")[0] == DISTRIBUTION:
        return Installed(path, path, DISTRIBUTION, VERSION, api=None)
    return Installed(path, path, api=None)


def api_refusal(plugin: Installed) -> str | None:
    """Why this llmkit does not serve the contract the plugin was written for, or None if it does."""
    if plugin.builtin or plugin.api is None:
        return None
    offered = ".".join(map(str, PLUGIN_API))
    if not plugin.api:
        return (
            f"does not say which plugin API it was written for; this llmkit offers {offered}: its "
            f"distribution needs the keyword {_API_KEYWORD}{offered}"
        )
    wanted = [_version(text) for text in plugin.api]
    readable = [version for version in wanted if version is not None]
    if any(map(_compatible, readable)):
        return None
    asked = f"was written for plugin API {', '.join(plugin.api)}; this llmkit offers {offered}"
    if not readable:
        return f"{asked}: the keyword {_API_KEYWORD} takes MAJOR.MINOR"
    if min(readable) > PLUGIN_API:
        return f"{asked}: it needs a newer llmkit"
    return f"{asked}: it needs a newer release of {plugin.distribution}"


def _compatible(wanted: tuple[int, int]) -> bool:
    """Below 1.0 every minor may break; from then on a plugin may ask for an older minor."""
    if wanted[0] != PLUGIN_API[0]:
        return False
    return wanted[1] == PLUGIN_API[1] if wanted[0] == 0 else wanted[1] <= PLUGIN_API[1]


def _version(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(match[1]), int(match[2])) if match else None


def _describe(entry_point: EntryPoint) -> Installed:
    distribution = entry_point.dist
    assert distribution is not None, "importlib.metadata sets it for every entry point it finds"
    if distribution.read_text("METADATA") is None and distribution.read_text("PKG-INFO") is None:
        return Installed(entry_point.name, entry_point.value, "a distribution without metadata")
    metadata = distribution.metadata
    name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
    keywords = re.split(r"[,\s]+", " ".join(metadata.get_all("Keywords") or []))
    return Installed(
        entry_point.name,
        entry_point.value,
        name,
        metadata["Version"],
        api=_after(_API_KEYWORD, keywords) if name != DISTRIBUTION else (),
        kinds=frozenset(_after(_KIND_KEYWORD, keywords)),
    )


def _after(prefix: str, keywords: list[str]) -> tuple[str, ...]:
    return tuple(word.removeprefix(prefix) for word in keywords if word.startswith(prefix))
