"""What a message asks, in the words of chat, and what it may not ask."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmkit import RequestError
from llmkit.contracts import Services
from llmkit_openai_api.messages.schema import (
    CountTokensRequest,
    MessageParam,
    MessagesRequest,
    OutputFormat,
    TextBlock,
    Thinking,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from llmkit_openai_api.request import not_yet
from llmkit_openai_api.translated import AsChat, Harmless, falsy, refuse_inner


def _rename(param: str, format_name: str) -> str:
    """``format_name``: the field that has the output's format."""
    names = {
        "response_format": format_name,
        "stop": "stop_sequences",
        "thinking_token_budget": "thinking.budget_tokens",
        "reasoning_effort": "output_config.effort",
        "continue_final_message": "messages",
    }
    tool = re.match(r"(tools\[\d+\])\.function(\.parameters)?", param)
    if tool is not None:
        return tool[1] + (".input_schema" if tool[2] else "") + param[tool.end() :]
    return names.get(param, param)


@dataclass(slots=True)
class _Chat:
    """Messages of a chat as they come about."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def turn(self, role: str, where: str) -> dict[str, Any]:
        """The last message where it is of this role, else a new one; calls end a turn of the assistant."""
        if not self.messages or self.messages[-1]["role"] != role or "tool_calls" in self.messages[-1]:
            self.messages.append({"role": role})
            self.names.append(where)
        return self.messages[-1]

    def say(self, role: str, text: str, where: str) -> None:
        self.turn(role, where).setdefault("content", []).append({"type": "text", "text": text})


def as_chat(body: CountTokensRequest, services: Services) -> AsChat:
    """:raises RequestError: the request asks for what is not here."""
    if body.thinking is not None:
        _check_thinking(body.thinking)
    chat = _Chat()
    system = [body.system] if isinstance(body.system, str) else [part.text for part in body.system or ()]
    for text in system:
        if text:
            chat.say("system", text, "system")
    for place, message in enumerate(body.messages):
        _read(message, f"messages[{place}]", chat)
    for turn in chat.messages:
        content = turn.get("content")
        if isinstance(content, list) and len(content) == 1:
            turn["content"] = content[0]["text"]
    choice, parallel = _tool_choice(body)
    format_name, form = _format(body)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": chat.messages,
        "tools": [_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.tools or ())] or None,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "reasoning_effort": None if body.output_config is None else body.output_config.effort,
    }
    if body.messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if isinstance(body, MessagesRequest):
        fields |= _generation(body, services)
        if form is not None:
            schema = {"name": "output", "schema": form.schema_, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    template_args = _template_args(body)
    if template_args:
        fields["chat_template_kwargs"] = template_args
    return AsChat.of(fields, "messages", chat.names, lambda param: _rename(param, format_name))


def _read(message: MessageParam, where: str, chat: _Chat) -> None:
    if isinstance(message.content, str):
        chat.say(message.role, message.content, f"{where}.content")
        return
    for place, block in enumerate(message.content):
        name = f"{where}.content[{place}]"
        match block:
            case TextBlock():
                chat.say(message.role, block.text, name)
            case ToolResultBlock() if message.role == "user":
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, name)}
                chat.messages.append(result)
                chat.names.append(name)
            case ThinkingBlock() if message.role == "assistant":
                turn = chat.turn("assistant", name)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + block.thinking
            case ToolUseBlock() if message.role == "assistant":
                arguments = json.dumps(block.input, ensure_ascii=False)
                call = {"name": block.name, "arguments": arguments}
                turn = chat.messages[-1] if chat.messages else {}
                if turn.get("role") != "assistant":
                    turn = chat.turn("assistant", name)
                calls = turn.setdefault("tool_calls", [])
                calls.append({"id": block.id, "type": "function", "function": call})
            case _ if block.type == "redacted_thinking" and message.role == "assistant":
                """Nobody here can read it."""
            case _:
                raise RequestError(
                    f"{name}.type is {block.type!r:.60}, which a {message.role}'s message may not hold here:"
                    " a user's may hold text and tool_result, an assistant's text, thinking,"
                    " redacted_thinking and tool_use",
                    param=f"{name}.type",
                    code="unsupported_value",
                )


def _result(block: ToolResultBlock, where: str) -> str:
    if isinstance(block.content, str):
        text = block.content
    else:
        for place, part in enumerate(block.content or ()):
            if not isinstance(part, TextBlock):
                name = f"{where}.content[{place}].type"
                raise RequestError(
                    f"{name} is {part.type!r:.60}; results are text here",
                    param=name,
                    code="unsupported_value",
                )
        text = "\n".join(part.text for part in block.content or () if isinstance(part, TextBlock))
    return f"Error: {text}" if block.is_error else text


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise RequestError(
            f"{where}.type is {tool['type']!r:.60}; only custom tools are called here, no server tools",
            param=f"{where}.type",
            code="unsupported_value",
        )
    if not isinstance(tool.get("input_schema"), Mapping):
        raise RequestError(f"{where}.input_schema: it must be an object", param=f"{where}.input_schema")
    refuse_inner(tool, where, _TOOL_OPTIONS)
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def _tool_choice(body: CountTokensRequest) -> tuple[Any, bool | None]:
    """In chat's words, and whether there may be several calls."""
    asked = body.tool_choice
    if asked is None:
        return None, None
    parallel = False if asked.disable_parallel_tool_use else None
    match asked.type:
        case "any":
            return "required", parallel
        case "tool":
            return {"type": "function", "function": {"name": asked.name}}, parallel
        case kind:
            return kind, parallel


def _format(body: CountTokensRequest) -> tuple[str, OutputFormat | None]:
    form = None if body.output_config is None else body.output_config.format
    if form is not None and body.output_format is not None:
        raise RequestError("output_format and output_config.format: give only one", param="output_format")
    return ("output_config.format", form) if form is not None else ("output_format", body.output_format)


def _generation(body: MessagesRequest, services: Services) -> dict[str, Any]:
    """What has no part in the prompt. ``max_tokens`` is the route's, for it is cut to the context."""
    fields = {
        **body.extensions(),
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
    }
    budget = None if body.thinking is None else body.thinking.budget_tokens
    if budget is not None and budget >= body.max_tokens:
        raise RequestError(
            f"thinking.budget_tokens is {budget}; it must be less than max_tokens ({body.max_tokens})",
            param="thinking.budget_tokens",
        )
    if budget is not None and services.reasoning_parser is not None:
        fields["thinking_token_budget"] = budget
    return fields


def _template_args(body: CountTokensRequest) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type != "adaptive":
        # The names that templates of models with a switch read.
        args |= dict.fromkeys(("enable_thinking", "thinking"), body.thinking.type == "enabled")
    if isinstance(body, MessagesRequest):
        args |= body.chat_template_kwargs or {}
    return args


# ---- what cannot be honoured: name -> whether a value, not null, asks for nothing ----

_TOOL_OPTIONS: Mapping[str, Harmless] = {
    "allowed_callers": lambda value: isinstance(value, list) and "direct" in value,
    "defer_loading": falsy,
    "input_examples": falsy,
}


def _check_thinking(thinking: Thinking) -> None:
    if thinking.type == "between_tools":
        raise not_yet("thinking.type")
    if (thinking.type == "enabled") != (thinking.budget_tokens is not None):
        needs = "needs" if thinking.type == "enabled" else "has no"
        raise RequestError(
            f"thinking.budget_tokens: thinking of type {thinking.type} {needs} budget_tokens",
            param="thinking.budget_tokens",
        )
