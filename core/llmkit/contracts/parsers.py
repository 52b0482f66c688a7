"""Parsers of what a model writes: reasoning, content and tool calls out of one text. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmkit.events import Delta
from llmkit.tools import CallsMode
from llmkit.types import FinishReason, StructuredOutput, Tool


@dataclass(frozen=True, slots=True)
class ParserSpec:
    """What the parser of one choice is made for. Since 0.1."""

    tools: Sequence[Tool] = ()
    """Those that may be called; a call of another name is a call too: the client decides."""
    prompt_tail: str = ""
    """The end of the rendered prompt, what the output continues: all that the template wrote behind the last
    message's text, and the text of a message that is continued. Empty where it cannot be told."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """As the chat template got them, such as ``enable_thinking``."""
    openers: Sequence[str] = ()
    """For a reasoning parser: markers that open a call, and so end reasoning that is still open."""


class OutputParser(Protocol):
    """One choice's parser: text in, deltas out, the same however the text is cut. Since 0.1.

    It holds back the longest suffix that may begin a marker and nothing more, in time linear in the text.
    Nothing is lost: each character is in a delta, belongs to a marker, or is syntax of a call. What is
    malformed becomes content and never raises. Sent arguments are only ever appended to; those of a
    complete call are one JSON object.
    """

    def feed(self, text: str) -> list[Delta]:
        """What became certain with this piece."""

    def finish(self, reason: FinishReason) -> list[Delta]:
        """The end: all that was held back. A call that is not complete is not closed."""


class ReasoningFormat(Protocol):
    """How a family of models marks its thinking; immutable, shared by all requests. Since 0.1."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """Special tokens that its parser must see spelt out in the text."""

    @property
    def starts(self) -> Sequence[str]:
        """Texts of which each begins reasoning where the model writes it itself, the usual one first."""

    @property
    def ends(self) -> Sequence[str]:
        """Texts of which each ends reasoning, besides calls. The first leads right to the answer: it is
        written for the model where its thinking budget is used up. None: nothing can."""

    @property
    def source(self) -> str:
        """Where the format is documented, as ``ToolFormat.source``."""

    def parser(self, spec: ParserSpec) -> OutputParser:
        """Gives ``Reasoning`` and ``Content``; the prompt's tail says in which it starts."""


class ToolFormat(Protocol):
    """How a family of models writes calls; immutable, shared by all requests. Since 0.1."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """Special tokens that its parser must see spelt out in the text."""

    @property
    def openers(self) -> Sequence[str]:
        """Texts of which one opens every call."""

    @property
    def source(self) -> str:
        """Where the format is documented: repository and path, or a model card; empty if it is unverified."""

    def parser(self, spec: ParserSpec) -> OutputParser:
        """Gives ``Content`` and calls: ``ToolCallOpened``, ``ArgumentsDelta``, ``ToolCallClosed``."""

    def constraint(self, tools: Sequence[Tool], *, required: bool, parallel: bool) -> StructuredOutput:
        """What the model may write so that its calls are of these tools and fit their schemas.

        ``required``: at least one call and nothing but calls; otherwise free text until a call opens.
        ``parallel``: any number of calls, otherwise one.

        :raises ValueError: the format cannot be constrained so; the text says why.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsing:
    """What a conversation asks of the parsers of its answers. Since 0.1."""

    tools: tuple[Tool, ...] = ()
    """Those that may be called; without any, what looks like a call is content."""
    calls: CallsMode = "free"
    parallel: bool = True
    """False ends the answer with its first call."""
    reasoning: bool = True
    """False leaves reasoning in the content, as the model wrote it."""
    prompt_tail: str = ""
    """As ``ParserSpec`` has it."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """As the chat template got them."""


@dataclass(frozen=True, slots=True)
class ParserHints:
    """What ``auto`` knows of a model. Since 0.1."""

    template: str
    """Source of the chat template, empty if there is none."""
    special_tokens: frozenset[str]
    model_type: str
    """As in config.json."""


class RegisterToolParser(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[Any], ToolFormat],
        *,
        recognizes: Callable[[ParserHints], str | None],
        priority: int = 0,
    ) -> None:
        """``factory(options)``. ``recognizes``: why it is this model's format, None if it is not; ``auto``
        takes the highest priority that recognizes the model."""


class RegisterReasoningParser(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[Any], ReasoningFormat],
        *,
        recognizes: Callable[[ParserHints], str | None],
        priority: int = 0,
    ) -> None:
        """As for tool parsers."""
