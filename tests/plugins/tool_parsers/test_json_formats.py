"""Formats whose calls are JSON keep the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmkit.contracts import ToolFormat
from llmkit.testing.components import create
from llmkit.testing.tool_parsers import Calls, Golden, ToolParserContract

NESTED = {"a": {"b": [1, {"c": None}], "d": []}, "e": -1.5e3}
UNICODE = {"city": "Zürich", "say": 'the "quoted" \\ word', "line": "one\ntwo"}
EMPTY: dict[str, Any] = {}


def obj(name: str, arguments: Mapping[str, Any], key: str = "arguments", ascii_only: bool = False) -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=ascii_only)


def common_goldens(contract: JsonContract) -> list[Golden]:
    """Of every kind, written as the format writes calls."""
    write = contract.write
    one = [("get_weather", {"city": "Paris"})]
    several = [("look", {"id": 1}), ("look", {"id": 2}), ("list_open", EMPTY)]
    cut_off = write([("put", {"value": "abc", "more": 1})])
    return [
        Golden("none", "I need no tool for that: 2 < 3.", content="I need no tool for that: 2 < 3."),
        Golden("one", write(one), calls=one),
        Golden("several", write(several), calls=several),
        Golden("without arguments", write([("ping", EMPTY)]), calls=[("ping", EMPTY)]),
        Golden("nested", write([("plan", NESTED)]), calls=[("plan", NESTED)]),
        Golden("unicode", write([("say", UNICODE)]), calls=[("say", UNICODE)]),
        Golden("text before", "Let me see.\n" + write(one), content="Let me see.\n", calls=one),
        Golden("text after", write(one) + "\n\nDone.", content="\n\nDone.", calls=one),
        Golden("newline before", "\n\n" + write(one) + "\n", calls=one),
        Golden("cut off", cut_off[: cut_off.index("bc")], cut_off=("put", '{"value": "a')),
        *contract.own_goldens,
    ]


class JsonContract(ToolParserContract):
    name: str
    own_goldens: Sequence[Golden] = ()

    @property
    def goldens(self) -> list[Golden]:  # type: ignore[override]
        return common_goldens(self)

    def make_format(self) -> ToolFormat:
        made: ToolFormat = create("tool_parser", self.name)
        return made


class TestHermes(JsonContract):
    name = "hermes"
    own_goldens = [
        Golden(
            "arguments first, as Hermes 2 writes them",
            '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>',
            calls=[("f", {"a": 1})],
        ),
        Golden(
            "no brace at the end",
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call> So.',
            calls=[("f", {"a": 1})],
            content=" So.",
        ),
        Golden("no JSON", "<tool_call>\nf(1)\n</tool_call>", content="<tool_call>\nf(1)\n</tool_call>"),
        Golden(
            "a raw newline in a string",
            '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>',
            calls=[("f", {"a": "x\ny"})],
        ),
        Golden(
            "a marker in a string",
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>"}}</tool_call>',
            calls=[("f", {"a": "</tool_call><tool_call>"})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "\n".join(f"<tool_call>\n{obj(*call)}\n</tool_call>" for call in calls)
