"""The harmony format of gpt-oss: messages with a header, of which the channel says what they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from llmkit.contracts import Content, Delta, FinishReason, OutputParser, ParserSpec, Reasoning, held_back

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)
RECIPIENT = " to="
HEADERS = (START, CHANNEL, MESSAGE, RECIPIENT)
"""What a header begins with, after a prompt that ends in the role too."""
LONGEST_HEADER = 256
"""A name has 64 characters at most; what is longer is no header."""
ENDS = (END, RETURN, CALL, START, CHANNEL)
"""What ends a message: a header too, where its end was left out."""
ENDING = re.compile("|".join(map(re.escape, ENDS)))


@dataclass(frozen=True, slots=True)
class Harmony:
    """Analysis is reasoning; what is for a tool goes on as it was written, for the parser of calls."""

    special_tokens: Sequence[str] = MARKERS
    starts: Sequence[str] = (f"{CHANNEL}analysis{MESSAGE}",)
    ends: Sequence[str] = (f"{END}{START}assistant{CHANNEL}final{MESSAGE}", *ENDS)
    source: str = "openai/harmony: docs/format.md"

    def parser(self, spec: ParserSpec) -> OutputParser:
        return HarmonyParser(spec.prompt_tail)


class Part(Enum):
    HEADER = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class HarmonyParser:
    """Text in, ``Reasoning`` and ``Content`` out; the content has calls as they were written."""

    def __init__(self, prompt_tail: str) -> None:
        self._part = Part.HEADER
        self._prompted = ""
        """The part of the header that the prompt has."""
        self._text = ""
        self._at = 0
        last = prompt_tail.rfind(START)
        if last >= 0:
            self.feed(prompt_tail[last:])
            self._prompted, self._text = self._text, ""

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        out: list[Delta] = []
        while self._at < len(self._text):
            step = self._header if self._part is Part.HEADER else self._body
            if not step(out):
                break
        self._text = self._text[self._at :]
        self._at = 0
        return out

    def finish(self, reason: FinishReason) -> list[Delta]:
        held, self._text = self._text, ""
        if not held:
            return []
        return [Reasoning(held) if self._part is Part.REASONING else Content(held)]

    def _header(self, out: list[Delta]) -> bool:
        """Pass a whole header; what cannot become one is content."""
        start = self._at
        first = next((h for h in HEADERS if self._text.startswith(h, start)), "")
        if not first:
            rest = self._text[start : start + LONGEST_HEADER]
            if any(h.startswith(rest) for h in HEADERS):
                return False
            self._part = Part.CONTENT
            return True
        end = self._text.find(MESSAGE, start, start + LONGEST_HEADER)
        if end < 0:
            if len(self._text) - start < LONGEST_HEADER:
                return False
            self._part = Part.CONTENT
            out.append(Content(first))
            self._at += len(first)
            return True
        self._at = end + len(MESSAGE)
        header = self._text[start : self._at]
        self._part = _part_of(self._prompted + header)
        self._prompted = ""
        if self._part is Part.CALL:
            out.append(Content(header))
        return True

    def _body(self, out: list[Delta]) -> bool:
        found = ENDING.search(self._text, self._at)
        if found is None:
            longest = max(map(len, ENDS))
            tail = self._text[max(self._at, len(self._text) - longest) :]
            end = len(self._text) - held_back(tail, ENDS)
        else:
            end = found.start()
        stop = end
        if found is not None and found[0] not in HEADERS:
            stop = found.end()
        raw = stop if self._part is Part.CALL else end
        if raw > self._at:
            kind = Reasoning if self._part is Part.REASONING else Content
            out.append(kind(self._text[self._at : raw]))
        self._at = stop
        if found is not None:
            self._part = Part.HEADER
        return found is not None


def _part_of(header: str) -> Part:
    header = header[max(0, header.rfind(START)) :]
    if RECIPIENT in header:
        return Part.CALL
    channel = header.rpartition(CHANNEL)[2]
    return Part.REASONING if channel.startswith("analysis") else Part.CONTENT
