"""An answer of a certain form in a conversation with tools: calls, or that."""

from __future__ import annotations

import json
from typing import Any

from llmkit.types import StructuredOutput


def calls_or(calls: StructuredOutput, answer: StructuredOutput) -> StructuredOutput:
    """What is one of the two from its first character on.

    :raises ValueError: one of them has no form beside another.
    """
    form = {"type": "or", "elements": [_part(calls), _part(answer)]}
    tag = {"type": "structural_tag", "format": form}
    return StructuredOutput("structural_tag", json.dumps(tag, ensure_ascii=False))


def _part(wanted: StructuredOutput) -> Any:
    """As a part of a structural tag; what is wrong in it shows when it is compiled."""
    match wanted.kind:
        case "json":
            return {"type": "json_schema", "json_schema": _read(wanted)}
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "regex":
            return {"type": "regex", "pattern": wanted.source}
        case "choice":
            texts = _read(wanted)
            if isinstance(texts, list) and texts:
                return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}
        case "structural_tag":
            tag = _read(wanted)
            if isinstance(tag, dict) and "format" in tag:
                return tag["format"]
    raise ValueError(
        f"a {wanted.kind} of this kind cannot stand beside calls of tools; leave one of them out"
    )


def _read(wanted: StructuredOutput) -> Any:
    try:
        return json.loads(wanted.source)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
