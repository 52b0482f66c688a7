"""Formats with a tag for each argument keep the contract."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmkit.contracts import Tool
from llmkit.testing.components import create
from llmkit.testing.tool_parsers import Calls, Golden, parse
from tests.plugins.tool_parsers.common import FormatContract


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class TestQwen3Coder(FormatContract):
    name = "qwen3_coder"
    own_goldens = [
        Golden(
            "as Python prints it, which is how the template writes it",
            "<tool_call>\n<function=set>\n<parameter=on>\nTrue\n</parameter>\n<parameter=off>\nNone\n</parameter>\n"
            "</function>\n</tool_call>",
            calls=[("set", {"on": True, "off": None})],
        ),
        Golden(
            "outer tag forgotten",
            "So:\n<function=look>\n<parameter=id>\nA-9\n</parameter>\n</function>\n</tool_call>",
            content="So:\n",
            calls=[("look", {"id": "A-9"})],
        ),
        Golden(
            "two functions in one outer tag",
            "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>",
            calls=[("f", {}), ("g", {})],
        ),
        Golden(
            "newlines of the value stay",
            "<tool_call>\n<function=put>\n<parameter=text>\n\na\n\n</parameter>\n</function>\n</tool_call>",
            calls=[("put", {"text": "\na\n"})],
        ),
        Golden(
            "all in one line",
            "<tool_call><function=put><parameter=text>a</parameter></function></tool_call>",
            calls=[("put", {"text": "a"})],
        ),
        Golden(
            "a backslash in a key",
            "<tool_call><function=put><parameter=a\\b>c</parameter></function></tool_call>",
            calls=[("put", {"a\\b": "c"})],
        ),
        Golden(
            "function's end forgotten",
            "<tool_call>\n<function=put>\n<parameter=n>\n1\n</parameter>\n</tool_call>",
            calls=[("put", {"n": 1})],
        ),
        Golden(
            "cut off in a closing tag",
            "<tool_call>\n<function=put>\n<parameter=text>\na\n</para",
            cut_off=("put", '{"text": "a'),
        ),
        Golden("no call", "<tool_call>oops</tool_call>", content="<tool_call>oops</tool_call>"),
        Golden(
            "no parameter where one should be",
            '<tool_call>\n<function=f>\n{"a": 1}',
            content='{"a": 1}',
            cut_off=("f", ""),
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "\n".join(
            f"<tool_call>\n<function={name}>\n"
            + "".join(
                f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items()
            )
            + "</function>\n</tool_call>"
            for name, arguments in calls
        )


class TestQwen3Xml(TestQwen3Coder):
    name = "qwen3_xml"


class TestSeedOss(FormatContract):
    name = "seed_oss"
    own_goldens = [
        Golden(
            "as Python prints it, which is how the template writes it",
            "<seed:tool_call>\n<function=set>\n<parameter=o>{'a': [True, None], \"b\": 'c'}</parameter>\n"
            "</function>\n</seed:tool_call>",
            calls=[("set", {"o": {"a": [True, None], "b": "c"}})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return "\n".join(
            f"<seed:tool_call>\n<function={name}>\n"
            + "".join(f"<parameter={key}>{plain(value)}</parameter>\n" for key, value in arguments.items())
            + "</function>\n</seed:tool_call>"
            for name, arguments in calls
        )


class TestMinimaxM2(FormatContract):
    name = "minimax_m2"
    own_goldens = [
        Golden(
            "section's end forgotten",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n',
            calls=[("f", {"a": 1})],
        ),
        Golden(
            "a backslash in a key",
            '<minimax:tool_call><invoke name="f"><parameter name="a\\b">1</parameter></invoke>'
            "</minimax:tool_call>",
            calls=[("f", {"a\\b": 1})],
        ),
        Golden(
            "invoke's end forgotten",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter></minimax:tool_call>',
            calls=[("f", {"a": 1})],
        ),
        Golden(
            "text in the section",
            '<minimax:tool_call>\n<invoke name="f">\n</invoke>\nand so on',
            content="\nand so on",
            calls=[("f", {})],
        ),
    ]

    def write(self, calls: Calls) -> str:
        return (
            "<minimax:tool_call>\n"
            + "".join(
                f'<invoke name="{name}">\n'
                + "".join(
                    f'<parameter name="{key}">{plain(value)}</parameter>\n'
                    for key, value in arguments.items()
                )
                + "</invoke>\n"
                for name, arguments in calls
            )
            + "</minimax:tool_call>"
        )


class TestDeepseekV32(FormatContract):
    name = "deepseek_v32"
    section = "function_calls"

    @property
    def own_goldens(self) -> list[Golden]:  # type: ignore[override]
        return [
            Golden(
                "the tag says what is a string",
                f'<｜DSML｜{self.section}>\n<｜DSML｜invoke name="f">\n'
                '<｜DSML｜parameter name="a" string="true">12</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="b" string="false">12</｜DSML｜parameter>\n'
                f"</｜DSML｜invoke>\n</｜DSML｜{self.section}>",
                calls=[("f", {"a": "12", "b": 12})],
            )
        ]

    def write(self, calls: Calls) -> str:
        return (
            f"<｜DSML｜{self.section}>\n"
            + "".join(
                f'<｜DSML｜invoke name="{name}">\n'
                + "".join(
                    f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
                    f"{plain(value)}</｜DSML｜parameter>\n"
                    for key, value in arguments.items()
                )
                + "</｜DSML｜invoke>\n"
                for name, arguments in calls
            )
            + f"</｜DSML｜{self.section}>"
        )


class TestDeepseekV4(TestDeepseekV32):
    name = "deepseek_v4"
    section = "tool_calls"


class TestGlm45(FormatContract):
    name = "glm45"
    line, prefix = "\n", ""

    @property
    def own_goldens(self) -> list[Golden]:  # type: ignore[override]
        tag = f"<{self.prefix}"
        end = f"</{self.prefix}"
        return [
            Golden(
                "all in one line",
                f"{tag}tool_call>f{tag}arg_key>a\\b{end}arg_key>{tag}arg_value>1{end}arg_value>{end}tool_call>",
                calls=[("f", {"a\\b": 1})],
            )
        ]

    def write(self, calls: Calls) -> str:
        line, prefix = self.line, self.prefix
        return line.join(
            f"<{prefix}tool_call>{name}{line}"
            + "".join(
                f"<{prefix}arg_key>{key}</{prefix}arg_key>{line}"
                f"<{prefix}arg_value>{plain(value)}</{prefix}arg_value>{line}"
                for key, value in arguments.items()
            )
            + f"</{prefix}tool_call>"
            for name, arguments in calls
        )


class TestGlm47(TestGlm45):
    name = "glm47"
    line = ""


class TestLongcatXml(TestGlm45):
    name = "longcat_xml"
    prefix = "longcat_"


class TestStep3(FormatContract):
    name = "step3"

    def write(self, calls: Calls) -> str:
        return (
            "<｜tool_calls_begin｜>\n"
            + "".join(
                f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n'
                + "".join(
                    f'<steptml:parameter name="{key}">{plain(value)}</steptml:parameter>\n'
                    for key, value in arguments.items()
                )
                + "</steptml:invoke><｜tool_call_end｜>\n"
                for name, arguments in calls
            )
            + "<｜tool_calls_end｜>"
        )


TYPED = [
    ("Ngata", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "Ngata"),
    ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    ("12", {"type": "string"}, "12"),
    ("12", {"type": ["string", "integer"]}, 12),
    ("12", {"type": ["string", "null"]}, "12"),
    ("12", {"type": "integer"}, 12),
    ("12", {}, 12),
    ("1e3", {"type": "number"}, 1000.0),
    ("12 monkeys", {"type": ["integer", "string"]}, "12 monkeys"),
    ("twelve", {"type": "integer"}, "twelve"),
    ("true", {"type": "string"}, "true"),
    ("True", {"type": "boolean"}, True),
    ('["a"]', {"type": "string"}, '["a"]'),
    ('["a"]', {"type": "array"}, ["a"]),
    ("['a', None]", {"type": "array"}, ["a", None]),
    ('{"a": 1}', {"$ref": "#/$defs/P"}, {"a": 1}),
    ('{"a": 1}', {"allOf": [{"$ref": "#/$defs/P"}]}, {"a": 1}),
    ('{"a": 1', {"$ref": "#/$defs/P"}, '{"a": 1'),
    ("red", {"enum": ["red", 1]}, "red"),
    ("1", {"enum": ["red", 1]}, 1),
    ("1", {"enum": ["1", "2"]}, "1"),
    ("nullify", {"type": ["string", "null"]}, "nullify"),
    ("NaN", {"type": "number"}, "NaN"),
    ("1" * 5000, {"type": "integer"}, None),
    ("[" * 5000, {"type": "array"}, "[" * 5000),
    ('"quoted"', {}, '"quoted"'),
    ("null", {"type": "string", "nullable": True}, None),
    ("5", {"type": "dict"}, "5"),
    ("x", {"$ref": "#/$defs/Loop"}, "x"),
]


@pytest.mark.parametrize(("written", "schema", "value"), TYPED)
@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_the_schema_says_what_a_value_is(written: str, schema: dict[str, Any], value: Any, size: int) -> None:
    root = {"$defs": {"P": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}}, "properties": {"v": schema}}
    text = TestGlm45().write([("f", {"v": written})])
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    [call] = parse(create("tool_parser", "glm45"), pieces, [Tool("f", parameters=root)]).calls
    assert call.closed
    if len(written) == 5000 and value is None:  # longer than Python reads
        assert call.arguments == f'{{"v": {written}}}'
    else:
        assert json.loads(call.arguments) == {"v": value}
        assert type(json.loads(call.arguments)["v"]) is type(value)


@pytest.mark.parametrize("word", ["pattern", "maxLength"])
def test_a_strict_tool_whose_text_cannot_be_held_is_refused(word: str) -> None:
    schema = {"type": "string", word: "a+" if word == "pattern" else 3}
    made = create("tool_parser", "qwen3_coder")
    for strict in (False, True):
        tool = Tool("f", parameters={"type": "object", "properties": {"v": schema}}, strict=strict)
        if not strict:
            made.constraint([tool], required=True, parallel=True)
            continue
        with pytest.raises(ValueError, match=f"'f' has '{word}' on parameter 'v'"):
            made.constraint([tool], required=True, parallel=True)
