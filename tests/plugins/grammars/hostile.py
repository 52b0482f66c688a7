"""Schemas, expressions and grammars that blow up, loop or break a compiler."""

from __future__ import annotations

import json
from typing import Any

from llmkit.contracts import StructuredOutput


def _schema(schema: Any) -> StructuredOutput:
    return StructuredOutput("json", json.dumps(schema))


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


DOUBLING = "root ::= a a a a a a a a" + "".join(
    f"\n{rule} ::= {f'{inner} ' * 8}" for rule, inner in zip("abcd", "bcde", strict=True)
)

HOSTILE = {
    "repeats-within-repeats": StructuredOutput("regex", "((a{1,9999}){1,9999}){1,9999}"),
    "nested-groups": StructuredOutput("regex", "(" * 5000 + "a" + ")" * 5000),
    "look-ahead": StructuredOutput("regex", r"(?=(a+)+$)\1"),
    "doubling-rules": StructuredOutput("grammar", DOUBLING + '\ne ::= "x"{0,1000}'),
    "left-recursion": StructuredOutput("grammar", 'root ::= root "a"'),
    "itself": _schema({"$ref": "#"}),
    "deep": StructuredOutput("json", '{"items":' * 5000 + "1" + "}" * 5000),
    "huge-enum": _schema({"enum": ["x" * 40 + str(number) for number in range(4500)]}),
    "many-properties": _schema(_object({f"p{number}": {"type": "string"} for number in range(3000)})),
    "some-of-many": _schema(
        _object(
            {f"p{number}": {"type": "string"} for number in range(300)},
            minProperties=150,
            additionalProperties=False,
        )
    ),
    "overlapping-branches": _schema(
        {"oneOf": [_object({f"k{j}": {"pattern": f"^(a|b){{0,{j}}}$"} for j in range(30)})] * 40}
    ),
}
"""Each is refused, quickly."""
