"""A published chat template run backwards: what a model wrote, from how its turn is rendered later."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmkit.frontend.chat_template import ChatTemplate

QUESTION = {"role": "user", "content": "What now?"}


@dataclass(frozen=True, slots=True)
class Published:
    """One family's template and how its text is parsed."""

    template: str
    """File name without its ending."""
    tools: str
    """The format of calls."""
    end: str
    """What ends the model's turn, where its rendering has it: the engine stops there, it is no text."""
    reasoning: str | None = None
    most_calls: int = 3
    thinks: Literal["never", "maybe", "always"] = "never"
    """Whether the template renders thinking before calls, and the prompt leaves a choice."""
    says: bool = True
    """The template renders text before calls."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    kinds: Sequence[str] = ()
    """Values that the template writes as the model does; all of them if empty."""
    letters: str = ""
    """Of texts that it writes so; any if empty."""

    def __str__(self) -> str:
        return f"{self.template}-{self.tools}"


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote, after which end of its prompt."""

    text: str
    prompt_tail: str


def written(
    chat: ChatTemplate,
    published: Published,
    message: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
) -> Written:
    """The text of the assistant's turn: what its rendering has beyond the prompt's.

    A prompt may open the turn in another way than the finished turn is written, such as with an open tag
    where the turn had no thinking; then the text begins where the two part.
    """
    options: dict[str, Any] = {"tools": tools, "template_args": published.template_args}
    prompt = chat.render([QUESTION], **options)
    opening = chat.opening(prompt, [QUESTION], **options)
    whole = chat.render([QUESTION, message], add_generation_prompt=False, **options)
    before = prompt[: len(prompt) - len(opening)]
    assert whole.startswith(before)
    turn = whole[len(before) :]
    shared = next((i for i, (a, b) in enumerate(zip(opening, turn, strict=False)) if a != b), len(opening))
    while shared < len(opening) and shared and opening[shared - 1] not in ">\n:":
        shared -= 1  # not within a marker
    text = turn[shared:]
    if published.end:
        text, found, _ = text.partition(published.end)
        assert found, f"{turn!r} has no {published.end!r}"
    return Written(text, opening[:shared])


# ---- random calls ----

PLAIN = "abcXYZ019_ -.,:;!?/{}[]()<>&=#`~|\té½ßж中\U0001f600"
"""Without quotes, backslashes and newlines, which some templates do not escape."""
LETTERS = "abcXYZ019_ -.,:;!?'\"\\/{}[]()<>&=#`~|\n\té½ßж中\U0001f600"
SCALARS = ("text", "text", "whole", "real", "truth")


def random_call(
    source: random.Random, kinds: Sequence[str] = (), letters: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool and arguments that fit its schema, of these kinds and letters where they are given."""
    name = "".join(source.choices("abcdefg_", k=source.randint(1, 12))) + source.choice(["", "1", "-x", "_Y"])
    kinds, letters = kinds or (*SCALARS, "list", "object"), letters or LETTERS
    arguments = {
        f"{source.choice('abcde')}_{i}": _value(source, kinds, letters) for i in range(source.randint(0, 4))
    }
    schema = {
        "type": "object",
        "properties": {key: {"type": _TYPES[type(value)]} for key, value in arguments.items()},
        "required": list(arguments),
    }
    function = {"name": name, "description": "Does it.", "parameters": schema}
    return {"type": "function", "function": function}, arguments


def assistant(
    calls: Sequence[tuple[str, Mapping[str, Any]]], *, content: str = "", reasoning: str = ""
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    message["tool_calls"] = [
        {
            "id": f"call{i:05}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    return message


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def _value(source: random.Random, kinds: Sequence[str], letters: str, depth: int = 2) -> Any:
    inner = (*SCALARS, "none", "list", "object") if depth else (*SCALARS, "none")
    match source.choice(kinds):
        case "text":
            return "".join(source.choices(letters, k=source.randint(0, 12)))
        case "whole":
            return source.randint(-(10**6), 10**6)
        case "real":
            return source.choice([0.5, -1.25, 1e-7, 3.0, 2.5e20])
        case "truth":
            return source.random() < 0.5
        case "list":
            return [_value(source, inner, letters, depth - 1) for _ in range(source.randint(0, 3))]
        case "object":
            return {f"k{i}": _value(source, inner, letters, depth - 1) for i in range(source.randint(0, 3))}
    return None
