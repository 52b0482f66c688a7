"""docs/output-stages.md: its stage keeps the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "output-stages.md").read_text()
names: dict[str, Any] = {}
for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(block, names)  # noqa: S102 - our own page

TestWhisper = names["TestWhisper"]
