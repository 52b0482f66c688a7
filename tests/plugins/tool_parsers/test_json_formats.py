"""Formats whose calls are JSON keep the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from llmkit.contracts import Tool, ToolFormat
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, accepts
from llmkit.testing.tool_parsers import Calls, Golden, ToolParserContract, parse

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
        Golden("escapes", write([("say", UNICODE)]).replace("ü", "\\u00fc"), calls=[("say", UNICODE)]),
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
        Golden(
            "arguments that are no JSON",
            'So <tool_call>{"name": "f", "arguments": {"a": nul, "b": 1}}</tool_call>.',
            content='So , "b": 1}}</tool_call>.',
            cut_off=("f", '{"a": nul'),
        ),
        Golden(
            "arguments that are no JSON, then a space",
            '<tool_call>{"name": "f", "arguments": {"a": nul ',
            content=" ",
            cut_off=("f", '{"a": nul'),
        ),
        Golden(
            "arguments as a string",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            calls=[("f", {"a": 1})],
        ),
        Golden(
            "arguments as null",
            '<tool_call>{"name": "f", "arguments": null}</tool_call>',
            calls=[("f", {})],
        ),
        Golden(
            "a name that is no text",
            '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
            content='<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
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


class TestGranite4(JsonContract):
    name = "granite4"

    def write(self, calls: Calls) -> str:
        return "\n".join(f"<tool_call>\n{obj(*call)}\n</tool_call>" for call in calls)


class TestLlama3(JsonContract):
    name = "llama3_json"
    own_goldens = [
        Golden(
            "after its tag",
            '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
            calls=[("f", {"a": 1}), ("g", {})],
        ),
        Golden(
            "with a type",
            '{"type": "function", "name": "f", "parameters": {"a": "b"}}',
            calls=[("f", {"a": "b"})],
        ),
        Golden("an answer in JSON", '{"name": "Ann", "age": 3}', content='{"name": "Ann", "age": 3}'),
        Golden("a name and no more", '{"name": "Ann"}', content='{"name": "Ann"}'),
        Golden("a tool's name and no more", '{"name": "f"}', calls=[("f", {})], tools=[Tool("f")]),
        Golden(
            "a tool's name and another key",
            '{"name": "f", "age": 3}',
            content='{"name": "f", "age": 3}',
            tools=[Tool("f")],
        ),
        Golden(
            "parameters of no name yet",
            '{"parameters": {"a": 1}, "name": "f"}',
            content='{"parameters": {"a": 1}, "name": "f"}',
            tools=[Tool("f")],
        ),
        Golden("code", "<|python_tag|>print({1: 2})", content="<|python_tag|>print({1: 2})"),
        Golden(
            "braces before",
            'With {x} and {"name": 1}: {"name": "f", "parameters": {}}',
            content='With {x} and {"name": 1}: ',
            calls=[("f", {})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "; ".join(obj(*call, key="parameters") for call in calls)


class TestLlama4(JsonContract):
    name = "llama4_json"
    own_goldens = [
        Golden(
            "between its marks",
            '<|python_start|>{"name": "f", "parameters": {"a": 1}}<|python_end|>',
            calls=[("f", {"a": 1})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "; ".join(obj(*call, key="parameters") for call in calls)


class TestMistralList(JsonContract):
    """Up to tokenizer 7."""

    name = "mistral_list"
    own_goldens = [
        Golden("of the other generation", '[TOOL_CALLS]f[ARGS]{"a": 1}', calls=[("f", {"a": 1})]),
        Golden(
            "with an id",
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "123456789"}]',
            calls=[("f", {"a": "]"})],
        ),
        Golden("an empty list", "[TOOL_CALLS][] No.", content="[TOOL_CALLS][] No."),
    ]

    def write(self, calls: Calls) -> str:
        return "[TOOL_CALLS][" + ", ".join(obj(*call) for call in calls) + "]"


class TestMistralNamed(JsonContract):
    """Since tokenizer 11."""

    name = "mistral"
    own_goldens = [
        Golden(
            "of the other generation",
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
            calls=[("f", {"a": 1}), ("g", {})],
        ),
        Golden(
            "with an id",
            '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": "[ARGS]"}[TOOL_CALLS]g[CALL_ID]1234567ab[ARGS]{}',
            calls=[("f", {"a": "[ARGS]"}), ("g", {})],
        ),
        Golden("without a marker", '[TOOL_CALLS]f{"a": 1}', calls=[("f", {"a": 1})]),
        Golden("no call", "[TOOL_CALLS]f(1) or so", content="[TOOL_CALLS]f(1) or so"),
    ]

    def write(self, calls: Calls) -> str:
        return "".join(
            f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"
            for name, arguments in calls
        )


class TestGranite(JsonContract):
    name = "granite"
    own_goldens = [
        Golden(
            "with its first marker",
            '<tool_call>[{"name": "f", "arguments": {"a": [[1], 2]}}]',
            calls=[("f", {"a": [[1], 2]})],
        ),
        Golden("arguments left out", '<|tool_call|>[{"name": "ping"}]', calls=[("ping", {})]),
        Golden(
            "half a list",
            '<|tool_call|>[{"name": "f", "arguments": {}}, {"nome": 1}]',
            content=', {"nome": 1}]',
            calls=[("f", {})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "<|tool_call|>[" + ", ".join(obj(*call) for call in calls) + "]"


class TestGranite20b(JsonContract):
    name = "granite_20b_fc"

    def write(self, calls: Calls) -> str:
        return "\n".join("<function_call> " + obj(*call) for call in calls)


class TestJamba(JsonContract):
    name = "jamba"

    def write(self, calls: Calls) -> str:
        return "<tool_calls>[\n    " + ",\n    ".join(obj(*call) for call in calls) + "\n]</tool_calls>"


class TestHunyuan(JsonContract):
    name = "hunyuan_a13b"

    def write(self, calls: Calls) -> str:
        return "<tool_calls>[" + ", ".join(obj(*call) for call in calls) + "]</tool_calls>"


class TestInternlm2(JsonContract):
    name = "internlm2"

    def write(self, calls: Calls) -> str:
        return "\n".join(
            f"<|action_start|><|plugin|>\n{obj(*call, key='parameters')}<|action_end|>" for call in calls
        )


class TestPhi4Mini(JsonContract):
    name = "phi4_mini_json"
    own_goldens = [
        Golden(
            "a word", "functools is in Python: functools[0]", content="functools is in Python: functools[0]"
        ),
        Golden("arguments left out", 'functools[{"name": "ping"}]', calls=[("ping", {})]),
        Golden(
            "lists in it",
            'functools[{"name": "tag", "arguments": {"t": ["a", "]"]}}]',
            calls=[("tag", {"t": ["a", "]"]})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "functools[" + ", ".join(obj(*call) for call in calls) + "]"


class TestXlam(JsonContract):
    name = "xlam"
    own_goldens = [
        Golden("fenced", '```json\n[{"name": "f", "arguments": {}}]\n```', calls=[("f", {})]),
        Golden("tagged", '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>', calls=[("f", {})]),
        Golden("Mistral's", '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', calls=[("f", {})]),
        Golden("lists", "[1, 2] and []", content="[1, 2] and []"),
        Golden("code", "```json\n{}\n```", content="```json\n{}\n```"),
    ]

    def write(self, calls: Calls) -> str:
        return "[" + ", ".join(obj(*call) for call in calls) + "]"


class TestMinimaxM1(JsonContract):
    name = "minimax_m1"

    def write(self, calls: Calls) -> str:
        return "<tool_calls>\n" + "\n".join(obj(*call) for call in calls) + "\n</tool_calls>"


class TestErnie45(JsonContract):
    name = "ernie45"

    def write(self, calls: Calls) -> str:
        return "\n".join(f"<tool_call>\n{obj(*call)}\n</tool_call>" for call in calls)


class TestLongcat(JsonContract):
    name = "longcat"

    def write(self, calls: Calls) -> str:
        return "\n".join(f"<longcat_tool_call>\n{obj(*call)}\n</longcat_tool_call>" for call in calls)


class TestGigachat3(JsonContract):
    name = "gigachat3"
    own_goldens = [
        Golden(
            "in a message of its own",
            'Let me see.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"a": 1}}',
            content="Let me see.",
            calls=[("f", {"a": 1})],
        ),
        Golden(
            "as the whole answer",
            'function call<|role_sep|>\n{"name": "f", "arguments": {"a": 1}}',
            calls=[("f", {"a": 1})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "".join("<|function_call|>" + obj(*call) for call in calls)


class TestCohereCommand(JsonContract):
    name = "cohere_command"

    def write(self, calls: Calls) -> str:
        written = (
            f'{{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": '
            f"{json.dumps(arguments, ensure_ascii=False)}}}"
            for number, (name, arguments) in enumerate(calls)
        )
        return "<|START_ACTION|>[\n    " + ",\n    ".join(written) + "\n]<|END_ACTION|>"


STRICT = Tool(
    "put",
    parameters={
        "type": "object",
        "properties": {"count": {"type": "integer"}},
        "required": ["count"],
        "additionalProperties": False,
    },
    strict=True,
)


@pytest.mark.parametrize("name", ["llama3_json", "llama4_json"])
@pytest.mark.parametrize(
    "text",
    [
        '{ "name": "put", "parameters": {"count": "x"}}',
        '{"name":"put","parameters":{"count": "x"}}',
        '{"type": "function", "name": "put", "parameters": {"count": "x"}}',
        '{"name": "put", "parameters": {"count": 1}}; {"name":"put","parameters":{"count": "x"}}',
        '{"name": "put", "parameters": {"count": 1}} { "name": "put", "parameters": {"count": "x"}}',
    ],
)
def test_a_bare_call_that_a_constraint_knows_nothing_of_is_text(name: str, text: str) -> None:
    made = create("tool_parser", name)
    backend = create("grammar", "xgrammar", SPEC)
    wanted = made.constraint([STRICT], required=False, parallel=True)
    assert accepts(backend.load(backend.compile(wanted)), text), "it may be written"
    parsed = parse(made, [text], [STRICT])
    assert all(arguments == {"count": 1} for _, arguments in parsed.complete())
    assert all(call.closed for call in parsed.calls)
    assert '"count": "x"' in parsed.content
