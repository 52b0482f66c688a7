"""Items of the Responses API as the messages of a chat, and as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmkit import RequestError
from llmkit_openai_api.responses.schema import Input
from llmkit_openai_api.responses.wire import OutputItem
from llmkit_openai_api.responses.writer import new_id

Item = dict[str, Any]
"""An item in JSON, with an id; never changed once it is made, for responses share them."""
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Types of the parts of a message, and the field that has the text."""


def input_items(given: Input | None, referenced: Callable[[str, str], Item]) -> list[Item]:
    """What was given, each with an id.

    ``referenced`` finds a stored item by its id; it gets the name of the field, too.
    :raises RequestError: an item is not one of a text model.
    """
    if given is None:
        return []
    if isinstance(given, str):
        parts = [{"type": "input_text", "text": given}]
        return [{"type": "message", "role": "user", "content": parts, "id": new_id("msg")}]
    items = []
    for place, held in enumerate(given):
        item = held.model_dump(exclude_none=True)
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "item_reference":
            items.append(referenced(item["id"], f"input[{place}].id"))
            continue
        if kind not in _PREFIXES:
            raise RequestError(
                f"input[{place}].type is {kind!r:.60}; an item may be a message, a function_call, a"
                " function_call_output, a reasoning or an item_reference",
                param=f"input[{place}].type",
                code="unsupported_value",
            )
        _check_parts(item.get("content" if kind == "message" else "output"), kind, f"input[{place}]")
        items.append({**item, "type": kind, "id": item.get("id") or new_id(_PREFIXES[kind])})
    return items


def output_items(output: Sequence[OutputItem]) -> list[Item]:
    """What a response gave, as part of a later input."""
    items: list[Item] = msgspec.to_builtins(output)
    return items


def as_messages(items: Sequence[Item]) -> tuple[list[dict[str, Any]], list[int]]:
    """The messages of a chat, and for each the place of the first item it is made of.

    Reasoning, text and calls that follow each other are one turn of the assistant.
    """
    messages: list[dict[str, Any]] = []
    places: list[int] = []
    turn: dict[str, Any] | None = None
    """The assistant's, while it may go on."""

    def assistant(place: int, *ends: str) -> dict[str, Any]:
        """The turn that goes on, unless it has one of ``ends``: then a new one."""
        nonlocal turn
        if turn is None or any(end in turn for end in ends):
            turn = {"role": "assistant"}
            messages.append(turn)
            places.append(place)
        return turn

    for place, item in enumerate(items):
        match item["type"]:
            case "reasoning":
                text = _reasoning(item)
                if text:
                    now = assistant(place, "content", "tool_calls")
                    now["reasoning_content"] = now.get("reasoning_content", "") + text
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                assistant(place).setdefault("tool_calls", []).append(call)
            case "message" if item["role"] == "assistant":
                assistant(place, "content", "tool_calls")["content"] = _content(item["content"])
            case "message":
                turn = None
                messages.append({"role": item["role"], "content": _content(item["content"])})
                places.append(place)
            case "function_call_output":
                turn = None
                content = _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
                places.append(place)
    return messages, places


def _content(content: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if len(content) == 1:
        return str(content[0][_PARTS[content[0]["type"]]])
    return [{"type": "text", "text": part[_PARTS[part["type"]]]} for part in content]


def _reasoning(item: Item) -> str:
    return "\n".join(part["text"] for part in item.get("content") or item.get("summary") or ())


def _check_parts(content: Any, kind: str, where: str) -> None:
    field = "content" if kind == "message" else "output"
    for place, part in enumerate(content if isinstance(content, list) else ()):
        name = f"{where}.{field}[{place}]"
        if part["type"] not in _PARTS:
            raise RequestError(
                f"{name}.type is {part['type']!r:.60}; this model takes text alone: input_text, output_text"
                " or refusal",
                param=f"{name}.type",
                code="unsupported_value",
            )
        held = _PARTS[part["type"]]
        if not isinstance(part.get(held), str):
            raise RequestError(f"{name}.{held}: it is missing", param=f"{name}.{held}")
