"""Formats whose texts stand between quotes that are tokens keep the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from llmkit.contracts import Tool
from llmkit.parsers.quoted import MAX_DEPTH
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, accepts
from llmkit.testing.tool_parsers import TEXTS, Calls, Golden, parse
from tests.plugins.tool_parsers.common import FormatContract

KEYS = st.from_regex(r"[a-z][A-Za-z0-9_]{0,20}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=4,
)


class TestFunctionGemma(FormatContract):
    name = "functiongemma"
    opener, closer, quote = "<start_function_call>call:", "<end_function_call>", "<escape>"

    @property
    def own_goldens(self) -> list[Golden]:  # type: ignore[override]
        opener, closer, quote = self.opener, self.closer, self.quote
        put = Tool("put", parameters={"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}})
        return [
            Golden(
                "a quoted number is what its schema says",
                f"{opener}put{{n:{quote}3{quote},s:{quote}3{quote}}}{closer}",
                calls=[("put", {"n": 3, "s": "3"})],
                tools=[put],
            ),
            Golden(
                "quoted keys and spaces",
                f'{opener}f{{ {quote}a b{quote} : [ 1 , {quote},]"{quote} ] }} {closer}',
                calls=[("f", {"a b": [1, ',]"']})],
            ),
            Golden("no quotes", f"{opener}f{{a:Paris}}{closer}", calls=[("f", {"a": "Paris"})]),
            Golden("no end", f"{opener}f{{a:1}} so", content=" so", calls=[("f", {"a": 1})]),
            Golden("no call", f"{opener} and so on", content=f"{opener} and so on"),
            Golden(
                "a list that is none",
                f"{opener}f{{a:[1}}{closer}",
                content=f"}}{closer}",
                cut_off=("f", '{"a": [1'),
            ),
        ]

    def write(self, calls: Calls) -> str:
        return "".join(
            f"{self.opener}{name}{self.value(arguments)}{self.closer}" for name, arguments in calls
        )

    def value(self, value: Any) -> str:
        match value:
            case str():
                return self.quote + value + self.quote
            case dict():
                return "{" + ",".join(f"{key}:{self.value(inner)}" for key, inner in value.items()) + "}"
            case list():
                return "[" + ",".join(map(self.value, value)) + "]"
        return json.dumps(value)

    def arguments(self) -> st.SearchStrategy[dict[str, Any]]:
        return st.dictionaries(KEYS, VALUES, max_size=4)


class TestGemma4(TestFunctionGemma):
    name = "gemma4"
    opener, closer, quote = "<|tool_call>call:", "<tool_call|>", '<|"|>'


@pytest.mark.parametrize("brackets", ["[", "{a:"])
def test_what_nests_too_deep_is_no_call_and_raises_nothing(brackets: str) -> None:
    text = "<start_function_call>call:f{a:" + brackets * 100_000
    [call] = parse(create("tool_parser", "functiongemma"), [text]).calls
    assert not call.closed
    assert call.arguments.count(brackets[0]) <= MAX_DEPTH + 1


def held(schema: dict[str, Any], *, strict: bool = False) -> Callable[[str], bool]:
    """Whether arguments are what a call of a tool with this schema is held to."""
    tool = Tool("f", parameters=schema, strict=strict)
    wanted = create("tool_parser", "gemma4").constraint([tool], required=True, parallel=False)
    backend = create("grammar", "xgrammar", SPEC)
    grammar = backend.load(backend.compile(wanted))
    return lambda arguments: accepts(grammar, "<|tool_call>call:f{" + arguments + "}<tool_call|>")


def test_lists_and_objects_are_held_to_their_schemas() -> None:
    allows = held(
        {
            "properties": {
                "ids": {"type": "array", "items": {"type": "integer"}},
                "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
            }
        },
        strict=True,
    )
    for arguments in ("", "ids:[]", "ids:[1,2]", "ids:[1],at:{x:0.5}", "at:{x:1}"):
        assert allows(arguments), arguments
    for arguments in ("ids:1", "ids:[1,]", "at:{}", "at:{x:y}", "at:{x:1},ids:[]"):
        assert not allows(arguments), arguments


def test_lists_and_objects_without_a_schema_of_their_own_are_any() -> None:
    schema = {"properties": {"v": {"type": ["object", "array"]}, "w": {}}}
    allows = held(schema)
    quote = '<|"|>'
    for value in ("{}", "[]", f"{{a:{quote}x < y, |{quote},b:[1,-0.5e3,{{}}]}}", "[true,null]"):
        assert allows(f"v:{value}"), value
        assert allows(f"w:{value}"), value
    for value in ("1", "{a}", f"[{quote}x]", "{a:b}"):
        assert not allows(f"v:{value}"), value
    assert allows(f"w:{quote}x{quote}")
    assert allows("w:12")


@pytest.mark.parametrize(
    "schema", [{"type": "array", "items": {}, "minItems": 1}, {"$ref": "#/$defs/A"}, {"minProperties": 2}]
)
def test_a_strict_tool_whose_value_cannot_be_held_is_refused_by_name(schema: dict[str, Any]) -> None:
    root = {"$defs": {"A": {"type": "object"}}, "properties": {"v": schema}}
    held(root)
    with pytest.raises(ValueError, match=r"strict tool 'f' has '.*' on parameter 'v': of objects and arrays"):
        held(root, strict=True)
