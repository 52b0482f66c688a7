"""docs/life-of-a-request.md names files that exist, and every file of the layers it walks through."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "llmkit"
PAGE = (ROOT / "docs" / "life-of-a-request.md").read_text()
NAMED = set(re.findall(r"`([\w/.]+\.py)`", PAGE))
WALKED = ("frontend", "engine", "worker", "server", "assemble", "nn")
PLUGIN_FOLDERS = [
    ROOT / "plugins" / "openai_api" / "llmkit_openai_api",
    ROOT / "plugins" / "cpu_paged" / "llmkit_cpu_paged",
]


def test_every_file_it_names_exists():
    places = [ROOT, CORE, *PLUGIN_FOLDERS]
    missing = [name for name in sorted(NAMED) if not any((place / name).is_file() for place in places)]
    assert not missing


def test_no_file_on_the_way_is_missing():
    files = [path for layer in WALKED for path in (CORE / layer).glob("*.py") if path.name != "__init__.py"]
    missing = {str(path.relative_to(CORE)) for path in files} - NAMED
    assert not missing, "name them on the page, in the order a request passes them"
