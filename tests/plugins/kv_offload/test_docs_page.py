"""The connector on docs/kv-offload.md passes the suite that the page names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llmkit.testing.connectors import KVConnectorContract

PAGE = Path(__file__).parents[3] / "docs" / "kv-offload.md"
CHECKS = [name for name in dir(KVConnectorContract) if name.startswith("test_")]


@pytest.mark.parametrize("check", CHECKS)
def test_the_connector_of_the_page(check: str) -> None:
    page: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), page)  # noqa: S102 - the page's own code is what is tested
    getattr(page["TestDictionary"](), check)()
