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
        spec = getattr(module, "__spec__", None)
        places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
        if any(str(place).startswith(str(folder)) for place in places):
            del sys.modules[name]
