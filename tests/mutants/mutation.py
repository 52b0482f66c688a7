"""Formats with a fault put into their source, loaded beside those that are in use."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = ("llmkit.parsers", "llmkit_tool_parsers", "llmkit_reasoning_parsers")
"""All that formats are made of."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: text of a module that is replaced."""

    fault: str
    module: str
    old: str
    new: str

    def formats(self, module: str) -> dict[str, Any]:
        """``FORMATS`` of a module that has the fault or is built on what has it."""
        with _forgotten():
            self._load()
            made: dict[str, Any] = import_module(module).FORMATS
        return made

    def source(self) -> str:
        """The module's, with the fault.

        :raises AssertionError: the text that is replaced is not in it, or more than once.
        """
        spec = importlib.util.find_spec(self.module)
        assert spec is not None, self.module
        assert spec.origin is not None, self.module
        source = Path(spec.origin).read_text(encoding="utf-8")
        found = source.count(self.old)
        assert found == 1, f"{self.fault}: {self.module} has {self.old!r} {found} times, not once"
        return source.replace(self.old, self.new)

    def _load(self) -> None:
        faulty = importlib.util.spec_from_loader(self.module, _Faulty(self.source()))
        assert faulty is not None
        assert faulty.loader is not None
        module = importlib.util.module_from_spec(faulty)
        sys.modules[self.module] = module
        faulty.loader.exec_module(module)


class _Faulty(importlib.abc.InspectLoader):
    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source


@contextmanager
def _forgotten() -> Iterator[None]:
    """As if none of the packages had been imported; afterwards as it was."""
    kept = {name: module for name, module in sys.modules.items() if _is_of_formats(name)}
    for name in kept:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_of_formats(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_of_formats(name: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in PACKAGES)
