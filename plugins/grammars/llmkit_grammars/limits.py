"""What both backends hold to."""

from __future__ import annotations

import json
from typing import Any

MAX_WHITESPACE = 20
"""Characters in a row between two JSON tokens: enough for ordinary indentation, too little to run away in."""


def whitespace(most: int) -> str:
    """As an expression that llguidance reads."""
    return rf"[\x20\x0A\x0D\x09]{{0,{most}}}"


def shown(value: Any, longest: int = 60) -> str:
    """JSON of a value from a request, shortened, for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else text[:longest] + "..."
