"""Tools of any name and schema: what the model is made to write is read as the call, or it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from llmkit.contracts import Grammar, Tool, ToolFormat
from llmkit.testing.components import create
from llmkit.testing.grammars import EOS, ROWS, SPEC
from llmkit.testing.tool_parsers import parse
from llmkit_tool_parsers.plugin import OFFERED

NAMES = ("f", "get weather", 'a"b', "a<b", "1x", "{x}", "a|b", "x" * 200, "functions.f", "f:1", "a\nb", " f ")
KEYS = ("k", "a-b", "a b", 'a"b', "a<b", "1", "a=b", "ключ", "{key}", "{is_string}", "a:b", "a,b", " a ", "")
KEYS = (*KEYS, "x" * 130, "x" * 257)
LIKED = (*b"1]})>/<\n",)
"""Bytes that soon come to an end, where they may come."""


@pytest.mark.parametrize("name", [offered.name for offered in OFFERED])
def test_what_is_written_is_read(name: str) -> None:
    made: ToolFormat = create("tool_parser", name)
    backend = create("grammar", "xgrammar", SPEC)
    tools = [tool_of(odd, "k") for odd in NAMES] + [tool_of("f", key) for key in KEYS]
    refused = 0
    for tool in tools:
        try:
            wanted = made.constraint([tool], required=True, parallel=False)
        except ValueError:
            refused += 1
            continue
        text = some_answer(backend.load(backend.compile(wanted)))
        parsed = parse(made, [text], [tool])
        arguments: Mapping[str, Any] = dict.fromkeys(tool.parameters["properties"], False)
        assert (parsed.complete(), parsed.content) == ([(tool.name, arguments)], ""), text
    assert refused < len(tools) - 2, "plain names are of every format"


@pytest.mark.parametrize(
    "said",
    [
        {"minProperties": 1},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"required": ["c"]},
        {"patternProperties": {"^x": {"type": "integer"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["a"]}}},
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "step3", "pythonic", "olmo3", "gemma4"])
def test_what_a_strict_tools_schema_says_of_all_parameters_is_held_or_refused(
    name: str, said: dict[str, Any]
) -> None:
    made: ToolFormat = create("tool_parser", name)
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, "title": "F"}
    made.constraint([Tool("f", parameters=parameters, strict=True)], required=True, parallel=True)
    with pytest.raises(ValueError, match=r"strict tool 'f' (has|requires) '"):
        made.constraint([Tool("f", parameters=parameters | said, strict=True)], required=True, parallel=True)


def tool_of(name: str, key: str) -> Tool:
    properties = {key: {"type": "boolean"}}
    return Tool(name, parameters={"type": "object", "properties": properties, "required": [key]})


def some_answer(grammar: Grammar) -> str:
    """What comes of a model that likes to end and says no."""
    matcher, written = grammar.matcher(), bytearray()
    while len(written) < 1000:
        mask = np.zeros(-(-ROWS // 32), np.int32)
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if EOS in allowed:
            break
        letters = [token for token in allowed if token < EOS]
        liked = [token for token in LIKED if token in letters]
        token = (liked or sorted(letters, key=lambda byte: (byte in b" t", not chr(byte).isalnum(), byte)))[0]
        assert matcher.accept(token)
        written.append(token)
    return written.decode()
