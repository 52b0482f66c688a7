"""Which format a model writes calls and reasoning in. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmkit.config import Config
from llmkit.contracts import Choice, ParserHints, ReasoningFormat, Tokenizer, ToolFormat
from llmkit.frontend.parsing import Formats
from llmkit.registry import Registry


def open_formats(
    config: Config, components: Registry, tokenizer: Tokenizer, template: str, model_type: str
) -> tuple[Formats, Sequence[Choice]]:
    """The formats that were asked for by name or that recognize the model, and how that came about.

    :raises UnknownName: a name is nobody's.
    """
    tokens = frozenset(tokenizer.token_text(token_id) for token_id in tokenizer.special_ids)
    hints = ParserHints(template, tokens, model_type)
    tool_choice = _choose("tool_parser", config.model.tool_call_parser, components, hints)
    reasoning_choice = _choose("reasoning_parser", config.model.reasoning_parser, components, hints)
    tool: ToolFormat | None = _create(components, tool_choice)
    reasoning: ReasoningFormat | None = _create(components, reasoning_choice)
    if tool is not None and not tool.source:
        tool_choice = _noting(tool_choice, _UNVERIFIED)
    if tool is not None and "tools" not in template:
        tool_choice = _noting(tool_choice, "the chat template does not show tools to the model")
    if reasoning is not None and not reasoning.source:
        reasoning_choice = _noting(reasoning_choice, _UNVERIFIED)
    formats = Formats(
        tokenizer,
        tool,
        reasoning,
        tool_name=tool_choice.name if tool is not None else None,
        reasoning_name=reasoning_choice.name if reasoning is not None else None,
    )
    return formats, (tool_choice, reasoning_choice)


_NONE = "none"
_UNVERIFIED = "unverified: its source could not be found"


def _choose(kind: str, requested: str | None, components: Registry, hints: ParserHints) -> Choice:
    if requested is None:
        return Choice(kind, _NONE, "as asked")
    chosen = components.recognized(kind, requested, hints)
    return chosen or Choice(kind, _NONE, "auto: no format recognizes the model's template and tokens")


def _create(components: Registry, choice: Choice) -> Any:
    return None if choice.name == _NONE else components.create(choice.kind, choice.name)


def _noting(choice: Choice, note: str) -> Choice:
    return Choice(choice.kind, choice.name, f"{choice.why}; {note}")
