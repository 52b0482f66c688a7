"""docs/models.md lists what the parity tests run."""

from __future__ import annotations

import re
from pathlib import Path

from llmkit.testing import tiny
from llmkit_models.shape import FAMILIES

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def test_the_page_lists_every_tested_architecture_and_its_paths() -> None:
    rows = re.findall(
        r"^\| (\w+(?:ForCausalLM|LMHeadModel))[^|]*\|([^|]*)\|([^|]*)\|", PAGE.read_text(), re.M
    )
    listed = {name: (native.strip(), generic.strip()) for name, native, generic in rows}
    assert listed == {name: ("yes" if name in FAMILIES else "", "yes") for name in tiny.MODELS}
