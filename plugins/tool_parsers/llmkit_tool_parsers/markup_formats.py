"""Formats that write each argument between tags of its own; a value's type is what the tool's schema says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool, ToolFormat
from llmkit_tool_parsers.scanning import NAME, SPACE, Head, Machine, Marks, Place, literal, matched, may_begin
from llmkit_tool_parsers.schemas import ANY, OTHERS, STRING, Signature, ValueWriter, kinds_of, without_strings
from llmkit_tool_parsers.tags import Layout, Part, any_text, json_of, one_of, optional, sequence, tag, text_of

_KEY = r"([^<>\"\n]{1,256})"
_UNHELD = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True)
class Markup:
    """One format: its tags, and how a constraint writes them."""

    source: str
    openers: Sequence[str]
    places: Sequence[Place]
    key: Head
    """From the tag of an argument to where its value begins: group 1 is its name. Group 2, where the format
    writes it, tells whether the value is a string: ``true`` or ``false``."""
    value_ends: Sequence[str]
    call_ends: Sequence[Head]
    newline: bool = False
    """A newline after the opening tag of a value is not part of it."""
    special_tokens: Sequence[str] = ()
    layout: Layout = field(kw_only=True)
    key_begin: str = field(kw_only=True)
    """An argument's tag as the model is made to write it, with ``{key}`` and perhaps ``{is_string}``."""
    after_value: str = field(kw_only=True)
    """What it then writes behind a value's end."""

    def parser(self, spec: ParserSpec) -> OutputParser:
        return MarkupParser(self, spec.tools)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        return self.layout.constraint({tool.name: self._body(tool) for tool in tools}, required, parallel)

    def _body(self, tool: Tool) -> Part:
        """All parameters in the schema's order; those that are not required may be left out."""
        needed = tool.parameters.get("required", [])
        parts = []
        for key, schema in tool.parameters.get("properties", {}).items():
            part = self._argument(key, schema, tool)
            parts.append(part if key in needed else optional(part))
        return sequence(parts)

    def _argument(self, key: str, schema: Any, tool: Tool) -> Part:
        kinds = kinds_of(schema, tool.parameters)
        begin, end = self.key_begin.replace("{key}", key), self.value_ends[0] + self.after_value
        choices = []
        if "string" in kinds:
            content = _plain(key, schema, tool, self.value_ends)
            choices.append(tag(begin.replace("{is_string}", "true"), content, end))
        if kinds & OTHERS and kinds != ANY:
            others = json_of(without_strings(schema), tool.parameters)
            choices.append(tag(begin.replace("{is_string}", "false"), others, end))
        return one_of(choices)


def _plain(key: str, schema: Any, tool: Tool, ends: Sequence[str]) -> Part:
    """A string as it is, not as JSON."""
    if not isinstance(schema, dict):
        return any_text(ends)
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    texts = [text_of(option) for option in options if isinstance(option, str)]
    if texts:
        return one_of(texts)
    if tool.strict and (beyond := [word for word in _UNHELD if word in schema]):
        raise ValueError(
            f"strict tool {tool.name!r} has {beyond[0]!r} on parameter {key!r}, which this format writes as "
            "plain text: of strings it can hold enum and const only"
        )
    return any_text(ends)


class MarkupParser(Machine):
    """Prose, then a call's name, then its arguments one after the other, then prose again."""

    def __init__(self, markup: Markup, tools: Sequence[Tool]) -> None:
        super().__init__(markup.openers, markup.places)
        self._markup = markup
        self._tools = tools
        self._value_ends = Marks(*markup.value_ends)
        self._signature = Signature((), "")
        self._value = ValueWriter(ANY)
        self._value_begins = False
        self._keys = 0

    def _begin(self, head: re.Match[str]) -> bool:
        name = head[1].strip()
        self._open(name)
        self._signature, self._keys = Signature(self._tools, name), 0
        return self._go(self._body, head.end())

    def _body(self) -> bool:
        self._skip_space()
        if key := self._markup.key.match(self._text, self._at):
            return self._argument(key)
        if end := matched(self._markup.call_ends, self._text, self._at):
            return self._complete(self._behind, end.end())
        if end := matched(self._place.ends, self._text, self._at):
            return self._complete(self._prose, end.end())
        if may_begin((self._markup.key, *self._markup.call_ends, *self._place.ends), self._text, self._at):
            return False
        return self._go(self._prose, self._at)  # no call as the format has it: the rest is text

    def _complete(self, state: Callable[[], bool], at: int) -> bool:
        self._arguments("}" if self._keys else "{}")
        self._close()
        return self._go(state, at)

    def _argument(self, key: re.Match[str]) -> bool:
        self._arguments(
            ("{" if not self._keys else ", ") + json.dumps(key[1].strip(), ensure_ascii=False) + ": "
        )
        self._keys += 1
        kinds = self._signature.kinds(key[1].strip())
        if self._markup.key.groups > 1:
            kinds = STRING if key[2] == "true" else OTHERS
        self._value, self._value_begins = ValueWriter(kinds), self._markup.newline
        return self._go(self._in_value, key.end())

    def _in_value(self) -> bool:
        if self._value_begins and self._at < len(self._text):
            self._value_begins = False
            self._at += self._text[self._at] == "\n"
        at, mark = self._value_ends.find(self._text, self._at)
        self._arguments(self._value.feed(self._text[self._at : at]))
        self._at = at
        if not mark:
            return False
        self._arguments(self._value.finish())
        return self._go(self._body, at + len(mark))


_FUNCTION = Head(literal("<function="), NAME, literal(">"))
_PARAMETER = Head(literal("<parameter="), _KEY, literal(">"))


def _function_in(opener: str, closer: str, *, newline: bool, source: str) -> Markup:
    """``<function=NAME>`` and ``<parameter=KEY>`` in an outer tag, whose opener models forget at times."""
    line = "\n" if newline else ""
    head = Head(literal(opener), SPACE, literal("<function="), NAME, literal(">"))
    again = Head(SPACE, literal("<function="), NAME, literal(">"))
    ends = (Head(SPACE, literal(closer)),)
    return Markup(
        source=source,
        openers=(opener, "<function="),
        places=(Place(head, again=(again,), ends=ends), Place(_FUNCTION, ends=ends)),
        key=_PARAMETER,
        value_ends=(line + "</parameter>", *(["</parameter>"] if newline else [])),
        call_ends=(Head(literal("</function>")),),
        newline=newline,
        special_tokens=(opener, closer),
        layout=Layout(f"{opener}\n<function={{name}}>\n", f"</function>\n{closer}", separator="\n"),
        key_begin="<parameter={key}>" + line,
        after_value="\n",
    )


def _invoke_in(opener: str, closer: str, prefix: str = "", typed: bool = False, *, source: str) -> Markup:
    """``<invoke name="NAME">`` and ``<parameter name="KEY">`` in an outer tag."""
    invoke, parameter = f'<{prefix}invoke name="', f'<{prefix}parameter name="'
    kind = (literal('" string="'), "([a-z]{1,5})") if typed else ()
    call = (SPACE, literal(invoke), NAME, literal('">'))
    return Markup(
        source=source,
        openers=(opener,),
        places=(
            Place(Head(literal(opener), *call), again=(Head(*call),), ends=(Head(SPACE, literal(closer)),)),
        ),
        key=Head(literal(parameter), _KEY, *kind, literal('">')),
        value_ends=(f"</{prefix}parameter>",),
        call_ends=(Head(literal(f"</{prefix}invoke>")),),
        special_tokens=(opener, closer),
        layout=Layout(f'{invoke}{{name}}">\n', f"</{prefix}invoke>\n", section=(opener + "\n", closer)),
        key_begin=parameter + '{key}"' + (' string="{is_string}"' if typed else "") + ">",
        after_value="\n",
    )


def _glm(line: str, source: str, prefix: str = "") -> Markup:
    """The name, then pairs of keys and values."""
    opener, closer = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    key, value = (
        (f"<{prefix}arg_key>", f"</{prefix}arg_key>"),
        (f"<{prefix}arg_value>", f"</{prefix}arg_value>"),
    )
    return Markup(
        source=source,
        openers=(opener,),
        places=(Place(Head(literal(opener), SPACE, NAME, r"(?=[<\n])")),),
        key=Head(literal(key[0]), _KEY, literal(key[1]), SPACE, literal(value[0])),
        value_ends=(value[1],),
        call_ends=(Head(literal(closer)),),
        special_tokens=(opener, closer, *key, *value),
        layout=Layout(opener + "{name}" + line, closer, separator=line),
        key_begin=f"{key[0]}{{key}}{key[1]}{line}{value[0]}",
        after_value=line,
    )


def _step(source: str) -> Markup:
    """As ``_invoke_in``, each in tokens of its own within those of the section."""
    section, call = (
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        ("<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
    )
    sep, invoke, parameter = "<｜tool_sep｜>", '<steptml:invoke name="', '<steptml:parameter name="'
    head = (
        SPACE,
        literal(call[0]),
        r"[\w\s]{0,64}",
        literal(sep),
        SPACE,
        literal(invoke),
        NAME,
        literal('">'),
    )
    return Markup(
        source=source,
        openers=section[:1],
        places=(
            Place(
                Head(literal(section[0]), *head),
                again=(Head(*head),),
                between=(Head(SPACE, literal(call[1])),),
                ends=(Head(SPACE, literal(section[1])),),
            ),
        ),
        key=Head(literal(parameter), _KEY, literal('">')),
        value_ends=("</steptml:parameter>",),
        call_ends=(Head(literal("</steptml:invoke>")),),
        special_tokens=(*section, *call, sep),
        layout=Layout(
            f'{call[0]}function{sep}{invoke}{{name}}">\n',
            f"</steptml:invoke>{call[1]}\n",
            section=(section[0] + "\n", section[1]),
        ),
        key_begin=parameter + '{key}">',
        after_value="\n",
    )


_TEMPLATES = "ggml-org/llama.cpp: models/templates/"

FORMATS: dict[str, ToolFormat] = {
    "qwen3_coder": _function_in(
        "<tool_call>", "</tool_call>", newline=True, source=_TEMPLATES + "Qwen3-Coder.jinja"
    ),
    "seed_oss": _function_in(
        "<seed:tool_call>",
        "</seed:tool_call>",
        newline=False,
        source=_TEMPLATES + "ByteDance-Seed-OSS.jinja",
    ),
    "minimax_m2": _invoke_in(
        "<minimax:tool_call>", "</minimax:tool_call>", source=_TEMPLATES + "MiniMax-M2.jinja"
    ),
    "deepseek_v32": _invoke_in(
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "｜DSML｜",
        typed=True,
        source=_TEMPLATES + "deepseek-ai-DeepSeek-V3.2.jinja",
    ),
    "deepseek_v4": _invoke_in(
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "｜DSML｜",
        typed=True,
        source=_TEMPLATES + "deepseek-ai-DeepSeek-V4.jinja",
    ),
    "glm45": _glm("\n", source=_TEMPLATES + "GLM-4.6.jinja"),
    "glm47": _glm("", source=_TEMPLATES + "GLM-4.7-Flash.jinja"),
    "step3": _step("sgl-project/sglang: python/sglang/srt/function_call/step3_detector.py"),
}
FORMATS["qwen3_xml"] = FORMATS["qwen3_coder"]
