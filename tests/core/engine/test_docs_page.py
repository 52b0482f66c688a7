"""The policy on docs/scheduler.md passes the suite that the page names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llmkit.testing.policies import PolicyContract

PAGE = Path(__file__).parents[3] / "docs" / "scheduler.md"
CHECKS = [name for name in dir(PolicyContract) if name.startswith("test_")]


@pytest.mark.parametrize("check", CHECKS)
def test_the_policy_of_the_page(check: str) -> None:
    page: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), page)  # noqa: S102 - the page's own code is what is tested
    getattr(page["TestShortestFirst"](), check)()
