"""What a conversation says of tools, in OpenAI's words and then in ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmkit.errors import RequestError
from llmkit.text import listing, nearest
from llmkit.types import Tool

CallsMode = Literal["free", "fitting", "required", "named"]
"""``free``: whatever the model calls. ``fitting``: a call is of these tools and fits its schema.
``required``: and there is at least one, and nothing but calls. ``named``: and it is one, of the only tool."""

MAX_NAME_CHARS = 256
MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolsAsked:
    """Which tools may be called, and how."""

    tools: tuple[Tool, ...] = ()
    """Empty: none may."""
    calls: CallsMode = "free"


def read_tools(tools: Sequence[Any] | None, choice: Any = None) -> ToolsAsked:
    """OpenAI's ``tools`` and ``tool_choice``.

    :raises RequestError: they are wrong, or ask for a tool that is not there.
    """
    known = _by_name(tools or ())
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if choice is None or choice == "auto":
        return _free(known.values())
    if choice == "none":
        return ToolsAsked()
    if not known:
        raise _wrong("tool_choice", "tool_choice asks for a call, but there are no tools")
    if choice == "required":
        return ToolsAsked(tuple(known.values()), "required")
    if kind == "function":
        return ToolsAsked((_named(known, choice, "tool_choice"),), "named")
    if kind == "allowed_tools":
        return _allowed(known, choice)
    raise _wrong(
        "tool_choice",
        f"tool_choice is {choice!r:.100}; it may be {listing(MODES)}, or an object of type function or"
        " allowed_tools",
    )


def _free(tools: Sequence[Tool] | Any) -> ToolsAsked:
    held = tuple(tools)
    return ToolsAsked(held, "fitting" if any(tool.strict for tool in held) else "free")


def _allowed(known: Mapping[str, Tool], choice: Mapping[str, Any]) -> ToolsAsked:
    """``{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}``: all are shown, few may be called."""
    where = "tool_choice.allowed_tools"
    asked = choice.get("allowed_tools")
    if not isinstance(asked, Mapping):
        raise _wrong(where, f"{where} must be an object with mode and tools")
    mode, listed = asked.get("mode"), asked.get("tools")
    if mode not in ("auto", "required"):
        raise _wrong(f"{where}.mode", f"{where}.mode is {mode!r:.60}; it may be auto or required")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise _wrong(f"{where}.tools", f"{where}.tools must be a list with at least one tool")
    tools = {tool.name: tool for tool in (_named(known, each, f"{where}.tools") for each in listed)}
    return ToolsAsked(tuple(tools.values()), "fitting" if mode == "auto" else "required")


def _named(known: Mapping[str, Tool], choice: Any, where: str) -> Tool:
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _wrong(where, f"{where} must name a function")
    if name not in known:
        guess = nearest(name, known)
        hint = f"; did you mean {guess!r}?" if guess else f"; there are {listing(known)}"
        raise _wrong(where, f"{where}: no tool is called {name[:100]!r}{hint}")
    return known[name]


def _by_name(tools: Sequence[Any]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for position, given in enumerate(tools):
        tool = _tool(given, f"tools[{position}]")
        if tool.name in found:
            raise _wrong(f"tools[{position}].function.name", f"tools: two are called {tool.name[:100]!r}")
        found[tool.name] = tool
    return found


def _tool(given: Any, where: str) -> Tool:
    if not isinstance(given, Mapping):
        raise _wrong(where, f"{where} must be an object")
    if given.get("type", "function") != "function":
        raise _wrong(f"{where}.type", f"{where}.type is {given['type']!r:.60}; tools are functions")
    function = given.get("function")
    if not isinstance(function, Mapping):
        raise _wrong(f"{where}.function", f"{where}.function must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        where = f"{where}.function.name"
        raise _wrong(where, f"{where} must be a text of 1 to {MAX_NAME_CHARS} characters")
    parts = {
        "description": (function.get("description"), str, "a text"),
        "parameters": (function.get("parameters"), Mapping, "a JSON schema, an object"),
        "strict": (function.get("strict"), bool, "true or false"),
    }
    for part, (value, kind, called) in parts.items():
        if value is not None and not isinstance(value, kind):
            raise _wrong(f"{where}.function.{part}", f"{where}.function.{part} must be {called}")
    return Tool(
        name,
        function.get("description") or "",
        dict(function.get("parameters") or {}),
        bool(function.get("strict")),
    )


def _wrong(param: str, message: str) -> RequestError:
    return RequestError(message, param=param, code="invalid_value")
