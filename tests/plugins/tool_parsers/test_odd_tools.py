"""Tools of any name and schema: what the model is made to write is read as the call, or it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from llmkit.contracts import Grammar, Tool, ToolFormat
from llmkit.parsers.schemas import alternatives, kinds_of
from llmkit.testing.components import create
from llmkit.testing.grammars import EOS, ROWS, SPEC, accepts
from llmkit.testing.tool_parsers import ToolParserContract, parse
from llmkit_tool_parsers.plugin import OFFERED
from tests.soak.outputs import suites

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


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"type": ["string", "null"], "title": "A"}, True),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}], "default": None}, True),
        ({"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]}, True),
        ({}, True),
        ({"enum": ["five", 7]}, True),
        ({"enum": ["5", 7]}, False),
        ({"type": ["string", "integer"], "maximum": 5}, False),
        ({"anyOf": [{"type": "string"}, {"type": "object", "required": ["x"]}]}, False),
        ({"minimum": 5}, False),
    ],
)
@pytest.mark.parametrize(("name", "typed"), [("qwen3_coder", False), ("deepseek_v32", True)])
def test_text_that_would_be_read_as_another_type_is_no_way_out(
    name: str, typed: bool, schema: dict[str, Any], held: bool
) -> None:
    """Where the format does not write the type: ``5`` for the text of an enum, ``99`` beside a maximum."""
    made: ToolFormat = create("tool_parser", name)
    tool = Tool("f", parameters={"type": "object", "properties": {"a": schema}}, strict=True)
    if held or typed:
        made.constraint([tool], required=True, parallel=False)
    else:
        with pytest.raises(ValueError, match="'a' may be text or something else"):
            made.constraint([tool], required=True, parallel=False)


COLORS = {"type": "string", "enum": ["red", "7"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/C"},
        {"anyOf": [{"$ref": "#/$defs/C"}, {"type": "null"}], "default": None},
        {"anyOf": [{"type": "null"}, {"const": "red"}]},
        {"allOf": [{"$ref": "#/$defs/C"}], "description": "A color."},
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "deepseek_v32", "gemma4"])
def test_texts_that_a_schema_lists_elsewhere_are_held(name: str, schema: dict[str, Any]) -> None:
    """As the schemas of Python's enums do, which are references."""
    made: ToolFormat = create("tool_parser", name)
    backend = create("grammar", "xgrammar", SPEC)
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": {"C": COLORS}}
    tools = [Tool("put", parameters=parameters)]
    grammar = backend.load(backend.compile(made.constraint(tools, required=True, parallel=False)))
    suite = suites("tool_parser", "tool_parsers", ToolParserContract)[name]
    assert accepts(grammar, suite.write([("put", {"a": "red"})]))
    for unfit in ("green", '"red"'):
        assert not accepts(grammar, suite.write([("put", {"a": unfit})])), unfit


def test_references_that_meet_again_and_again_are_looked_up_once() -> None:
    levels = {f"L{at}": {"anyOf": [{"$ref": f"#/$defs/L{at + 1}"}] * 20} for at in range(12)}
    root = {"$defs": {**levels, "L12": {"type": "integer"}}}
    assert kinds_of({"$ref": "#/$defs/L0"}, root) == {"integer"}
    assert alternatives({"$ref": "#/$defs/L0"}, root) == [{"type": "integer"}]


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
