"""Tools with schemas of any shape: a constraint is refused in words, or its calls are read and have what is
required; and answers are read whatever the schemas say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from llmkit.contracts import GrammarBackend, ParserSpec, Tool, ToolFormat
from llmkit.parsers.schemas import kinds_of
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, walk
from llmkit.testing.tool_parsers import parse
from llmkit.types import MAX_GRAMMAR_CHARS
from llmkit_tool_parsers.plugin import OFFERED

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def an_object(required: Any = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required) if isinstance(required, tuple) else required,
    }


ITSELF = {"$ref": "#/properties/a"}
CHAIN = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(40)}
NESTED: dict[str, Any] = TEXT
for _ in range(25):
    NESTED = an_object(a=TEXT, b=NESTED)
SCHEMAS: dict[str, dict[str, Any]] = {
    "properties-list": {"type": "object", "properties": ["a"]},
    "properties-null": {"type": "object", "properties": None},
    "required-null": an_object(None, a=TEXT),
    "required-number": an_object(3, a=TEXT),
    "required-lists": an_object([["a"]], a=TEXT),
    "required-forbidden": {**an_object(("b",), a=TEXT), "additionalProperties": False},
    "enum-number": an_object(a={"enum": 5}),
    "enum-null": an_object(a={"type": "string", "enum": None}),
    "union-of-anything": an_object(a={"anyOf": [True, None, {"type": ["string", "integer"]}]}),
    "nested-properties-list": an_object(a={"type": "object", "properties": [1], "required": 7}),
    "refers-to-itself": an_object(a={"anyOf": [ITSELF] * 10}),
    "refers-to-itself-in-all": an_object(a={"allOf": [ITSELF] * 10}),
    "refers-through-many": {**an_object(a={"$ref": "#/$defs/d0"}), "$defs": CHAIN},
    "refers-to-nothing": {"$ref": "#/$defs/none"},
    "many-optional": an_object(**{f"k{i}": TEXT for i in range(3000)}),
    "many-in-many": NESTED,
    "one-definition-everywhere": {
        **an_object(**{f"k{i}": {"$ref": "#/$defs/x"} for i in range(1000)}),
        "$defs": {"x": {"type": "string", "description": "x" * 100_000}},
    },
}
"""What clients send who mean ill, or whose libraries do."""
ENDS = ("</parameter>", "</arg_value>", '<|"|>', "</｜DSML｜parameter>", "</longcat_arg_value>")
FITTING: dict[str, dict[str, Any]] = {
    "required-not-listed": an_object(("b",), a=TEXT),
    "list": {"type": "array"},
    "text": {"type": "string"},
    "object-or-null": {**an_object(("q",), q=NUMBER), "type": ["object", "null"]},
    "defined-elsewhere": {"$ref": "#/$defs/x", "$defs": {"x": an_object(("q",), q=NUMBER)}},
    "ends-of-values": an_object(("a",), a={"enum": [*ENDS, "plain"]}),
    "ends-of-values-only": an_object(
        ("a",), a={"const": '</parameter></arg_value><|"|></｜DSML｜parameter>'}
    ),
}
WRITTEN = (
    "<tool_call>\n<function=put>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>put\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    '<|tool_call>call:put{a:<|"|>x<|"|>}<tool_call|>',
)
"""Calls in formats that write no types."""
NAMES = [offered.name for offered in OFFERED]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_schema_of_any_shape_is_held_or_refused(name: str, schema: str) -> None:
    made: ToolFormat = create("tool_parser", name)
    for ways in range(4):
        tool = Tool("put", parameters=SCHEMAS[schema], strict=ways > 1)
        try:
            wanted = made.constraint([tool], required=bool(ways % 2), parallel=True)
        except ValueError as error:
            refusal = str(error)
        else:
            refusal = "none"
            assert len(wanted.source) <= MAX_GRAMMAR_CHARS
        assert 0 < len(refusal) < 400


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", FITTING)
def test_a_call_under_constraint_has_what_is_required(name: str, schema: str) -> None:
    made: ToolFormat = create("tool_parser", name)
    backend: GrammarBackend = create("grammar", "xgrammar", SPEC)
    tool = Tool("put", parameters=FITTING[schema])
    try:
        grammar = backend.load(backend.compile(made.constraint([tool], required=True, parallel=False)))
    except ValueError:
        return
    for seed in range(3):
        text, complete = walk(grammar, random.Random(seed), 300)
        if complete:
            parsed = parse(made, [text.decode()], [tool])
            ((called, arguments),) = parsed.complete()
            assert (called, parsed.content.strip()) == ("put", "")
            assert isinstance(arguments, dict)
            assert set(FITTING[schema].get("required", ["q"])) <= set(arguments)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("schema", [*SCHEMAS, *FITTING])
@pytest.mark.parametrize(("name", "text"), zip(("qwen3_coder", "glm45", "gemma4"), WRITTEN, strict=True))
def test_answers_are_read_whatever_the_schema_says(name: str, text: str, schema: str) -> None:
    tool = Tool("put", parameters=(SCHEMAS | FITTING)[schema])
    parser = create("tool_parser", name).parser(ParserSpec(tools=[tool]))
    assert len([*parser.feed(text)]) > 2


def test_types_are_seen_through_references() -> None:
    root = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]}, "b": NUMBER}}
    assert "string" in kinds_of({"$ref": "#/$defs/a"}, root), "what is part of itself may be anything"
    both = {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}
    assert kinds_of(both, root) == kinds_of(NUMBER, {})
