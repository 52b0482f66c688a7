"""Harmony, the format of gpt-oss: messages with a channel each, a call being one with a recipient."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from llmkit.contracts import OutputParser, ParserSpec, ToolFormat
from llmkit.events import Content, Reasoning
from llmkit.types import FinishReason, StructuredOutput, Tool
from llmkit_tool_parsers.constraints import arguments_schema
from llmkit_tool_parsers.json_scanner import JsonScanner
from llmkit_tool_parsers.scanning import Head, Machine, Marks, Place, literal
from llmkit_tool_parsers.tags import Layout, json_of

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MAX_HEADER = 512
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")


class Harmony:
    """All of a message: what a reasoning parser has not taken from it comes out as reasoning here."""

    source = "openai/harmony: docs/format.md"
    openers: Sequence[str] = (f"{CHANNEL}commentary to=", " to=functions.")
    special_tokens: Sequence[str] = (START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS)
    _layout = Layout(f"{CHANNEL}commentary to=functions.{{name}} <|constrain|>json{MESSAGE}", "<|call|>")

    def parser(self, spec: ParserSpec) -> OutputParser:
        return HarmonyParser(spec)

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        bodies = {tool.name: json_of(arguments_schema(tool)) for tool in tools}
        return self._layout.constraint(bodies, required, parallel)


class HarmonyParser(Machine):
    """Headers, then what they announce."""

    def __init__(self, spec: ParserSpec) -> None:
        super().__init__((START, CHANNEL, *ENDS), (Place(Head(literal(START))),))
        self._tools = {tool.name for tool in spec.tools}
        self._marks = Marks(START, CHANNEL, *ENDS)
        self._header_marks = Marks(MESSAGE, START, *ENDS)
        self._kind: type[Content] | type[Reasoning] = Content
        self._scanner = JsonScanner()
        if spec.prompt_tail.endswith(f"{START}assistant"):
            self._state = self._first

    def _first(self) -> bool:
        """Behind a header that the prompt has begun: its recipient may come, or a channel, or plain text."""
        wanted = " to="
        rest = self._text[self._at : self._at + len(wanted)]
        if rest == wanted:
            return self._go(self._header, self._at)
        return False if wanted.startswith(rest) else self._go(self._prose, self._at)

    def _prose(self) -> bool:
        at, mark = self._marks.find(self._text, self._at)
        self._say(self._text[self._at : at])
        self._at = at
        if not mark:
            return False
        if mark in ENDS:
            self._kind, self._at_edge = Content, True
            return self._go(self._prose, at + len(mark))
        return self._go(self._header, at)

    def _header(self) -> bool:
        """From ``<|start|>`` or ``<|channel|>`` to ``<|message|>``."""
        begin = self._at
        skipped = begin + (len(START) if self._text.startswith(START, begin) else 0)
        at, mark = self._header_marks.find(self._text, skipped)
        if at - begin > MAX_HEADER or (mark and mark != MESSAGE):
            self._say(self._text[begin:at] if mark else self._text[begin : begin + MAX_HEADER])
            return self._go(self._prose, at if mark else begin + MAX_HEADER)
        if not mark:
            return False
        return self._go(self._announced(self._text[begin:at]), at + len(mark))

    def _announced(self, header: str) -> Callable[[], bool]:
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        self._kind = Reasoning if channel is not None and channel[1] == "analysis" else Content
        name = "" if recipient is None else recipient[1]
        if name.startswith("functions.") or name in self._tools:
            self._open(name.removeprefix("functions."))
            self._scanner = JsonScanner()
            return self._before_json
        return self._prose

    def _before_json(self) -> bool:
        self._skip_space()
        if self._at == len(self._text):
            return False
        if self._text[self._at] == "{":
            return self._go(self._in_json, self._at)
        at, mark = self._marks.find(self._text, self._at)
        if at > self._at or not mark:
            return self._go(self._prose, self._at) if at > self._at else False
        self._arguments("{}")
        self._close()
        return self._go(self._prose, at)

    def _in_json(self) -> bool:
        self._at, text = self._scanner.scan(self._text, self._at)
        self._arguments(text)
        if self._scanner.done:
            self._close()
            return self._go(self._prose, self._at)
        return self._go(self._prose, self._at) if self._scanner.failed else False

    def _ended(self, rest: str, reason: FinishReason) -> None:
        if self._state in (self._prose, self._first):
            self._say(rest)
        elif self._state == self._before_json and reason is FinishReason.STOP and not rest:
            self._arguments("{}")  # the mark that ends it ended the output
            self._close()

    def _say(self, text: str) -> None:
        if self._kind is Reasoning:
            self._out.append(Reasoning(text))
        else:
            self._content(text)


FORMATS: dict[str, ToolFormat] = {"harmony": Harmony()}
FORMATS["openai"] = FORMATS["harmony"]
