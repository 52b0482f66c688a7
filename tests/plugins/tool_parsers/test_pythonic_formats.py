"""Formats that write calls as Python does keep the contract."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkit.contracts import Tool
from llmkit.parsers.python_values import LiteralReader, as_json
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, accepts
from llmkit.testing.tool_parsers import VALUES, Calls, Golden, parse
from tests.plugins.tool_parsers.common import FormatContract

KEYS = st.from_regex(r"[a-z][A-Za-z0-9_]{0,20}", fullmatch=True)


def as_python(calls: Calls) -> list[str]:
    return [
        f"{name}({', '.join(f'{key}={literal(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]


def literal(value: Any) -> str:
    """Texts in double quotes, as the prompts of these models have them."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


class TestPythonic(FormatContract):
    name = "pythonic"
    own_goldens = [
        Golden(
            "brackets in text",
            "[find(q=\"a]b\"), find(q='c[d')] done",
            content=" done",
            calls=[("find", {"q": "a]b"}), ("find", {"q": "c[d"})],
        ),
        Golden(
            "all that Python writes",
            "[f(a=(1, 2,), b={'x': None, 1: True,}, c=-0x10, d=1_000, e=.5, "
            "g='''it's\n''', h='\\x41\\u00e9\\101\\q\\ud83d\\ude42')]",
            calls=[
                (
                    "f",
                    {
                        "a": [1, 2],
                        "b": {"x": None, "1": True},
                        "c": -16,
                        "d": 1000,
                        "e": 0.5,
                        "g": "it's\n",
                        "h": "AéA\\q🙂",
                    },
                )
            ],
        ),
        Golden(
            "as JSON has it",
            "[f(a=true, b=null, c=false)]",
            calls=[("f", {"a": True, "b": None, "c": False})],
        ),
        Golden("no literal", "[f(a=Color.RED)]", content="Color.RED)]", cut_off=("f", '{"a": ')),
        Golden("no keyword", "[f(1)]", content="[f(1)]"),
        Golden("a list in prose", "See [f(a=1) for a in b].", content="See [f(a=1) for a in b]."),
        Golden("on a line of its own", "So:\n[f(a=1)]", content="So:\n", calls=[("f", {"a": 1})]),
        Golden("spaces", "[ f( a = 1 , ) , g( ) ]", calls=[("f", {"a": 1}), ("g", {})]),
    ]

    def write(self, calls: Calls) -> str:
        return f"[{', '.join(as_python(calls))}]"

    def arguments(self) -> st.SearchStrategy[dict[str, Any]]:
        return st.dictionaries(KEYS, VALUES, max_size=4)


class TestLlama4Pythonic(TestPythonic):
    name = "llama4_pythonic"

    def write(self, calls: Calls) -> str:
        return f"<|python_start|>[{', '.join(as_python(calls))}]<|python_end|>"


class TestLfm2(FormatContract):
    name = "lfm2"

    def write(self, calls: Calls) -> str:
        return f"<|tool_call_start|>[{', '.join(as_python(calls))}]<|tool_call_end|>"

    def arguments(self) -> st.SearchStrategy[dict[str, Any]]:
        return st.dictionaries(KEYS, VALUES, max_size=4)


class TestOlmo3(TestLfm2):
    name = "olmo3"

    def write(self, calls: Calls) -> str:
        return "<function_calls>" + "\n".join(as_python(calls)) + "</function_calls>"


def test_a_list_in_prose_is_a_call_of_a_tool_there_is() -> None:
    tools = [Tool("f", parameters={})]
    parsed = parse(create("tool_parser", "pythonic"), ["I call [f(a=1)] and not [g(a=1)]."], tools)
    assert parsed.complete() == [("f", {"a": 1})]
    assert parsed.content == "I call  and not [g(a=1)]."


@given(VALUES)
def test_literals_read_as_python_reads_them(value: Any) -> None:
    read = as_json(repr(value))
    assert read is not None
    assert json.loads(read) == value


@given(st.text(st.sampled_from("'\"\\nux01aZ\n[]{}(),: TrueN-.e"), max_size=12))
def test_what_is_no_literal_fails_and_nothing_raises(text: str) -> None:
    read = as_json(text)
    pieces = list[str]()
    reader = LiteralReader()
    for char in text + "\n":
        if reader.read(char, 0, pieces) == 0:
            break
    if read is not None:
        json.loads(read)
        assert "".join(pieces) == read
    try:
        meant = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError):
        return
    if isinstance(meant, str) and text.strip()[0] in "'\"" and "\\" not in text:
        assert read is None or json.loads(read) == meant


@pytest.mark.parametrize("name", ["pythonic", "llama4_pythonic"])
def test_a_strict_tool_is_held_in_a_bare_list(name: str) -> None:
    made, backend = create("tool_parser", name), create("grammar", "xgrammar", SPEC)
    tools = [Tool("f", parameters={"properties": {"a": {"type": "integer"}}}, strict=True)]
    grammar = backend.load(backend.compile(made.constraint(tools, required=False, parallel=True)))
    assert accepts(grammar, "I call [f(a=1)].")
    for unfit in ('[f(a="x")]', '[ f(a="x")]', '[f( a="x")]', "[g()]"):
        assert not accepts(grammar, unfit), unfit
