"""Formats whose calls are JSON objects, alone or in a list, between markers or bare."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmkit.contracts import OutputParser, ParserSpec, StructuredOutput, Tool
from llmkit_tool_parsers.constraints import Layout
from llmkit_tool_parsers.json_scanner import JsonScanner
from llmkit_tool_parsers.reading import CallReader, Malformed, Reading

_NAME = re.compile(r"[\w.:/-]*")
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_BARE_KEYS = ("name", *_ARGUMENTS, "type", "id")


class JsonCallReader(CallReader):
    """Objects with a name and arguments, in a list or one after the other, then perhaps a closer.

    A bare object, which no marker tells from an answer in JSON, is a call if its name comes before
    arguments and it has no key that calls have not; without arguments, only if the name is a tool's.
    """

    def __init__(self, form: JsonFormat, spec: ParserSpec) -> None:
        self._form = form
        self._names = frozenset(tool.name for tool in spec.tools)
        super().__init__((*form.openers, *form.bare))

    def read_calls(self, opener: str) -> Reading[None]:
        bare = opener in self._form.bare
        yield from self.skip_space()
        if (yield from self.accept("[")):
            yield from self._list(bare)
        else:
            yield from self._one_after_the_other(bare)
        yield from self.skip_space()
        if not self._form.closers or not (yield from self.accept(*self._form.closers)):
            self.unread()

    def _list(self, bare: bool) -> Reading[None]:
        comma = ","
        while comma:
            yield from self.skip_space()
            yield from self._call(bare)
            yield from self.skip_space()
            comma = yield from self.accept(",")
        yield from self.expect("]")
        self.syntax()

    def _one_after_the_other(self, bare: bool) -> Reading[None]:
        char = "{"
        while char == "{":
            yield from self._call(bare)
            char = yield from self.skip_space()
            if char and char in self._form.separators:
                yield from self.expect(char)
                if (yield from self.skip_space()) != "{":
                    raise Malformed
                char = "{"

    def _call(self, bare: bool) -> Reading[None]:
        yield from self.expect("{")
        name, arguments, streamed = "", "", False
        comma = ","
        while comma:
            key = yield from self._key(bare)
            if key in _NAMES and not name:
                name = yield from self._string()
            elif key in _ARGUMENTS and not arguments and not streamed:
                streamed = bool(name) and (yield from self._streamed(name))
                if not streamed and bare:
                    raise Malformed
                arguments = "" if streamed else (yield from self._whole_arguments())
            else:
                yield from self.json_value()
            yield from self.skip_space()
            comma = yield from self.accept(",")
        if not streamed:
            if not name or (bare and name not in self._names):
                raise Malformed
            yield from self.expect("}")
            self.opened(name)
            self.arguments(arguments or "{}")
        elif not (yield from self.accept("}", *self._form.closers)):
            raise Malformed
        self.closed()

    def _key(self, bare: bool) -> Reading[str]:
        """A key and its colon; of a bare object it is found out early that it is none of a call's."""
        yield from self.skip_space()
        if bare:
            key = (yield from self.accept(*(f'"{known}"' for known in _BARE_KEYS))).strip('"')
            if not key:
                raise Malformed
        else:
            key = yield from self._string()
        yield from self.skip_space()
        yield from self.expect(":")
        return key

    def _string(self) -> Reading[str]:
        if (yield from self.skip_space()) != '"':
            raise Malformed
        return _decoded((yield from self.json_value()))

    def _streamed(self, name: str) -> Reading[bool]:
        """The call of this name and its arguments as they come, if they are an object as they should be."""
        if (yield from self.skip_space()) != "{":
            return False
        self.opened(name)
        yield from self.json_value(as_arguments=True)
        return True

    def _whole_arguments(self) -> Reading[str]:
        """Arguments whose name is still to come, or written as a string; empty for null."""
        text = yield from self.json_value()
        if text.startswith('"'):
            text = _decoded(text).strip()
        scanner = JsonScanner()
        if text.startswith("{") and scanner.scan(text)[0] == len(text) and scanner.done:
            return text
        if text not in ("", "null"):
            raise Malformed
        return ""


class MistralReader(JsonCallReader):
    """Both generations: a list of objects, or since tokenizer 11 each call with a marker of its own."""

    def read_calls(self, opener: str) -> Reading[None]:
        yield from self.skip_space()
        name = yield from self.run(_NAME)
        if not name:
            yield from super().read_calls(opener)
            return
        if (yield from self.accept("[CALL_ID]")):
            yield from self.run(_NAME)
        yield from self.accept("[ARGS]")
        if not (yield from self._streamed(name)):
            raise Malformed
        self.closed()


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A family of models that writes calls as JSON."""

    openers: tuple[str, ...]
    """Markers that come before a call or before all; one that ends in a bracket begins the list itself."""
    source: str
    layout: Layout
    """How calls are written exactly, where they are to be constrained."""
    closers: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    """Brackets that may begin calls without a marker."""
    separators: str = ""
    """Characters of which one may come between calls."""
    special_tokens: tuple[str, ...] = ()
    reader: type[JsonCallReader] = JsonCallReader

    def parser(self, spec: ParserSpec) -> OutputParser:
        return self.reader(self, spec)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        return self.layout.constraint(tools, required=required, parallel=parallel)


def _decoded(text: str) -> str:
    """A JSON string's value, which must be text."""
    value: str = json.loads(text)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise Malformed
    return value


_TAGS = ("<tool_call>", "</tool_call>")
_HERMES = JsonFormat(
    openers=_TAGS[:1],
    closers=_TAGS[1:],
    special_tokens=_TAGS,
    layout=Layout(before="<tool_call>\n", between="\n", after="\n</tool_call>"),
    source="Qwen/Qwen2.5-7B-Instruct: chat template",
)
_LISTED = Layout(before="[", between=", ", after="]", listed=True)
_LLAMA = Layout(head='{{"name": {name}, "parameters": ', between="; ")
_MISTRAL = JsonFormat(
    openers=("[TOOL_CALLS]",),
    special_tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    layout=Layout(before="[TOOL_CALLS]", head="{name}[ARGS]", tail="", quoted=False),
    reader=MistralReader,
    source="mistralai/Ministral-3-14B-Reasoning-2512: chat template",
)
"""It reads both generations; models of the first are to be held to their own, ``mistral_list``."""

FORMATS = {
    "hermes": _HERMES,
    "granite4": replace(_HERMES, source="ibm-granite/granite-4.0-h-small: chat template"),
    "llama3_json": JsonFormat(
        openers=("<|python_tag|>",),
        bare=("{",),
        separators=";,",
        special_tokens=("<|python_tag|>",),
        layout=_LLAMA,
        source="meta-llama/Llama-3.1-8B-Instruct: chat template",
    ),
    "llama4_json": JsonFormat(
        openers=("<|python_start|>", "<|python_tag|>"),
        closers=("<|python_end|>",),
        bare=("{",),
        separators=";,",
        special_tokens=("<|python_start|>", "<|python_end|>", "<|python_tag|>"),
        layout=_LLAMA,
        source="vllm-project/vllm: examples/tool_chat_template_llama4_json.jinja",
    ),
    "mistral": _MISTRAL,
    "mistral_list": replace(
        _MISTRAL,
        layout=replace(_LISTED, before="[TOOL_CALLS]["),
        source="mistralai/Mistral-Nemo-Instruct-2407: chat template",
    ),
    "granite": JsonFormat(
        openers=("<|tool_call|>", "<tool_call>"),
        special_tokens=("<|tool_call|>",),
        layout=replace(_LISTED, before="<|tool_call|>["),
        source="ibm-granite/granite-3.3-2b-instruct: chat template",
    ),
    "granite_20b_fc": JsonFormat(
        openers=("<function_call>",),
        special_tokens=("<function_call>",),
        layout=Layout(before="<function_call> ", between="\n"),
        source="vllm-project/vllm: examples/tool_chat_template_granite_20b_fc.jinja",
    ),
    "jamba": JsonFormat(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        special_tokens=("<tool_calls>", "</tool_calls>"),
        layout=Layout(before="<tool_calls>[\n    ", between=",\n    ", after="\n]</tool_calls>", listed=True),
        source="",
    ),
    "hunyuan_a13b": JsonFormat(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        special_tokens=("<tool_calls>", "</tool_calls>"),
        layout=replace(_LISTED, before="<tool_calls>[", after="]</tool_calls>"),
        source="vllm-project/vllm: examples/tool_chat_template_hunyuan_a13b.jinja",
    ),
    "internlm2": JsonFormat(
        openers=("<|action_start|><|plugin|>",),
        closers=("<|action_end|>",),
        special_tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
        layout=Layout(
            before="<|action_start|><|plugin|>\n",
            head='{{"name": {name}, "parameters": ',
            after="<|action_end|>",
            between="\n",
        ),
        source="InternLM/InternLM: chat/chat_format.md",
    ),
    "phi4_mini_json": JsonFormat(
        openers=("functools[",),
        layout=replace(_LISTED, before="functools["),
        source="vllm-project/vllm: examples/tool_chat_template_phi4_mini.jinja",
    ),
    "xlam": JsonFormat(
        openers=("<tool_call>", "```json", "[TOOL_CALLS]"),
        closers=("</tool_call>", "```"),
        bare=("[",),
        special_tokens=("<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
        layout=_LISTED,
        source="vllm-project/vllm: examples/tool_chat_template_xlam_llama.jinja",
    ),
    "minimax_m1": JsonFormat(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        special_tokens=("<tool_calls>", "</tool_calls>"),
        layout=Layout(before="<tool_calls>\n", between="\n", after="\n</tool_calls>", listed=True),
        source="MiniMaxAI/MiniMax-M1-80k: docs/function_call_guide.md",
    ),
    "ernie45": replace(_HERMES, source=""),
    "gigachat3": JsonFormat(
        openers=(
            "<|function_call|>",
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "function call<|role_sep|>\n",
        ),
        special_tokens=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"),
        layout=Layout(before="<|function_call|>"),
        source="ai-sage/GigaChat3.1-10B-A1.8B: chat template",
    ),
    "cohere_command": JsonFormat(
        openers=("<|START_ACTION|>",),
        closers=("<|END_ACTION|>",),
        special_tokens=("<|START_ACTION|>", "<|END_ACTION|>"),
        layout=Layout(
            before="<|START_ACTION|>[\n    ",
            between=",\n    ",
            after="\n]<|END_ACTION|>",
            listed=True,
            head='{{"tool_call_id": "{number}", "tool_name": {name}, "parameters": ',
        ),
        source="CohereForAI/c4ai-command-r7b-12-2024: chat template",
    ),
}
