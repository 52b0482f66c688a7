"""``tools`` and ``tool_choice`` as requests say them."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.errors import RequestError
from llmkit.tools import ToolsAsked, read_tools
from llmkit.types import Tool

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


F, G = Tool("f", "It does.", SCHEMA), Tool("g")
TOOLS = [function("f", description="It does.", parameters=SCHEMA), function("g")]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]},
    }


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        (None, None, ToolsAsked()),
        ([], "auto", ToolsAsked()),
        (None, "none", ToolsAsked()),
        (TOOLS, None, ToolsAsked((F, G))),
        (TOOLS, "auto", ToolsAsked((F, G))),
        (TOOLS, "none", ToolsAsked()),
        (TOOLS, "required", ToolsAsked((F, G), "required")),
        (TOOLS, {"type": "function", "function": {"name": "g"}}, ToolsAsked((G,), "named")),
        (TOOLS, {"type": "function", "name": "g"}, ToolsAsked((G,), "named")),
        (TOOLS, allowed("auto", "g"), ToolsAsked((G,), "fitting")),
        (TOOLS, allowed("required", "g", "f", "g"), ToolsAsked((G, F), "required")),
        ([function("g", strict=True)], None, ToolsAsked((Tool("g", strict=True),), "fitting")),
        ([function("g", strict=False, parameters=None, description=None)], None, ToolsAsked((G,))),
    ],
)
def test_what_may_be_called(tools: Any, choice: Any, expected: ToolsAsked) -> None:
    assert read_tools(tools, choice) == expected


@pytest.mark.parametrize(
    ("tools", "choice", "param", "words"),
    [
        ([1], None, "tools[0]", "must be an object"),
        ([{"type": "web_search"}], None, "tools[0].type", "'web_search'; tools are functions"),
        ([{}], None, "tools[0].function", "an object with a name"),
        ([function("")], None, "tools[0].function.name", "1 to 256 characters"),
        ([function("f", parameters=[])], None, "tools[0].function.parameters", "a JSON schema"),
        ([function("f", strict="yes")], None, "tools[0].function.strict", "true or false"),
        ([function("f"), function("f")], None, "tools[1].function.name", "two are called 'f'"),
        (None, "required", "tool_choice", "there are no tools"),
        (TOOLS, "always", "tool_choice", "'always'; it may be auto, none, required"),
        (TOOLS, {"type": "custom"}, "tool_choice", "an object of type function or"),
        (TOOLS, function("h"), "tool_choice", "no tool is called 'h'"),
        (TOOLS, {"type": "function"}, "tool_choice", "must name a function"),
        (TOOLS, {"type": "allowed_tools"}, "tool_choice.allowed_tools", "mode and tools"),
        (TOOLS, allowed("none", "f"), "tool_choice.allowed_tools.mode", "'none'; it may be"),
        (TOOLS, allowed("auto"), "tool_choice.allowed_tools.tools", "at least one"),
        (TOOLS, allowed("auto", "h"), "tool_choice.allowed_tools.tools", "no tool is called"),
    ],
)
def test_what_is_wrong_is_named(tools: Any, choice: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        read_tools(tools, choice)
    assert refused.value.param == param
