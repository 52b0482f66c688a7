"""Fixtures for tests of the core."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder on ``sys.path``; what is imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        if any(place.startswith(str(folder)) for place in places):
            del sys.modules[name]
