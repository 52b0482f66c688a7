"""The output stage: content, reasoning and arguments, each on its own."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    FinishReason,
    OutputStage,
    Reasoning,
    ToolCallClosed,
    ToolCallOpened,
)
from llmkit_redact.arguments import ArgumentsRedactor
from llmkit_redact.text import CARD, EMAIL, Redactor, Rule, word


class Redaction:
    """What is taken out of every answer."""

    conceals = True

    def __init__(self, kinds: Sequence[str], words: Sequence[str]) -> None:
        known = {"email": EMAIL, "card": CARD}
        longest_first = sorted(words, key=len, reverse=True)
        self._rules = [*map(word, longest_first), *(known[kind] for kind in kinds)]

    def stage(self) -> OutputStage:
        return RedactionStage(self._rules)


class RedactionStage:
    """One choice's; owns what is undecided of the text that comes."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._kind: type[Content] | type[Reasoning] | type[ArgumentsDelta] = Content
        self._redactor: Redactor | ArgumentsRedactor = Redactor(rules)

    def feed(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ToolCallOpened | ToolCallClosed):
            return [*self._flush(Content), delta]
        shown = [] if type(delta) is self._kind else self._flush(type(delta))
        text = self._redactor.feed(delta.text)
        return [*shown, self._kind(text)] if text else shown

    def finish(self, reason: FinishReason) -> list[Delta]:
        return self._flush(Content)

    def _flush(self, kind: type[Content] | type[Reasoning] | type[ArgumentsDelta]) -> list[Delta]:
        """What is held back, and a new text of ``kind``."""
        text = self._redactor.finish()
        shown: list[Delta] = [self._kind(text)] if text else []
        self._kind = kind
        self._redactor = (ArgumentsRedactor if kind is ArgumentsDelta else Redactor)(self._rules)
        return shown
