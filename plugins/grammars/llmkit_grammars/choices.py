"""Lists of texts of which the answer is one."""

from __future__ import annotations

import json

from llmkit_grammars.limits import shown

MAX_CHOICES = 4096
MAX_CHARS = 1 << 18


def parse_choices(source: str) -> list[str]:
    """:raises ValueError: it is no list of some texts, none of them empty."""
    try:
        choices = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the choices are no JSON: {error}") from None
    if not isinstance(choices, list):
        raise ValueError(f"the choices are {shown(choices)}; they must be a list of strings")
    for place, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise ValueError(f"choice {place} is {shown(choice)}; it must be a string")
    if not choices or "" in choices:
        raise ValueError("there must be at least one choice, and none may be empty")
    if len(choices) > MAX_CHOICES or sum(map(len, choices)) > MAX_CHARS:
        raise ValueError(f"there may be at most {MAX_CHOICES} choices with {MAX_CHARS} characters together")
    return list(dict.fromkeys(choices))
