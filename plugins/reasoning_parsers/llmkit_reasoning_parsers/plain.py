"""Of models that do not think aloud: all is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmkit.contracts import Content, Delta, FinishReason, OutputParser, ParserSpec


@dataclass(frozen=True, slots=True)
class Plain:
    special_tokens: Sequence[str] = ()
    starts: Sequence[str] = ()
    ends: Sequence[str] = ()
    source: str = "llmkit: a format without marks"

    def parser(self, spec: ParserSpec) -> OutputParser:
        return PlainParser()


class PlainParser:
    def feed(self, text: str) -> list[Delta]:
        return [Content(text)] if text else []

    def finish(self, reason: FinishReason) -> list[Delta]:
        return []
