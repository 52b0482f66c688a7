"""What a request for a response asks, in the words of chat, and what it may not ask."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmkit import RequestError
from llmkit_openai_api.responses.items import Item, as_messages
from llmkit_openai_api.responses.schema import (
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    Asked,
    ResponsesRequest,
    Text,
)
from llmkit_openai_api.translated import AsChat, Harmless, falsy, never, refuse_inner

LOGPROBS = "message.output_text.logprobs"


_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.allowed_tools": "tool_choice",
    "tool_choice.function": "tool_choice",
}


def _rename(param: str) -> str:
    for old, new in _NAMES.items():
        if param == old or param.startswith((f"{old}.", f"{old}[")):
            return new + param[len(old) :]
    return re.sub(r"^(tools\[\d+\])\.function", r"\1", param)


def as_chat(body: Asked, earlier: Sequence[Item], given: Sequence[Item]) -> AsChat:
    """``earlier`` items of the conversation, then those of this request.

    :raises RequestError: the request asks for what is not here, or for nothing.
    """
    _refuse(body)
    messages, places = as_messages([*earlier, *given])
    names = [
        f"input[{place - len(earlier)}]" if place >= len(earlier) else "previous_response_id"
        for place in places
    ]
    if isinstance(body.input, str):
        names[-1:] = ["input"]
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
        names.insert(0, "instructions")
    if not given:
        raise RequestError(
            "input: it is missing" if body.input is None else "input: it is empty", param="input"
        )
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "tools": [_tool(tool, place) for place, tool in enumerate(body.tools or ())] or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
    }
    if isinstance(body, ResponsesRequest):
        fields |= _generation(body)
    template_args = _template_args(body)
    if template_args:
        fields["chat_template_kwargs"] = template_args
    return AsChat.of(fields, "input", names, _rename)


def _generation(body: ResponsesRequest) -> dict[str, Any]:
    """What has no part in the prompt."""
    shows = LOGPROBS in (body.include or ())
    fields = {
        **body.extensions(),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop,
        "logprobs": shows or None,
        "top_logprobs": body.top_logprobs if shows else None,
        "response_format": _response_format(body.text),
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
    }
    if body.truncation == "auto" and body.truncate_prompt_tokens is None:
        fields["truncate_prompt_tokens"] = -1
    return fields


def _template_args(body: Asked) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if body.text is not None and body.text.verbosity is not None:
        args["verbosity"] = body.text.verbosity
    if isinstance(body, ResponsesRequest):
        args |= body.chat_template_kwargs or {}
    return args


def _response_format(text: Text | None) -> dict[str, Any] | None:
    form = None if text is None else text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    for name, held in (("name", form.name), ("schema", form.schema_)):
        if held is None:
            where = f"text.format.{name}"
            raise RequestError(f"{where}: it is missing; json_schema needs it", param=where)
    schema = {"name": form.name, "schema": form.schema_, "strict": form.strict}
    return {"type": "json_schema", "json_schema": schema}


def _tool(tool: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A function, flat as the Responses API has it, as chat has it."""
    kind = tool.get("type")
    where = f"tools[{place}]"
    if kind != "function":
        raise RequestError(
            f"{where}.type is {kind!r:.60}; only functions are called here, no hosted tools",
            param=f"{where}.type",
            code="unsupported_value",
        )
    refuse_inner(tool, where, _TOOL_OPTIONS)
    shown = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in shown if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    match choice.get("type"):
        case "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        case "allowed_tools":
            tools = choice.get("tools")
            if isinstance(tools, list):
                tools = [_allowed(tool) for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
        case kind:
            raise RequestError(
                f"tool_choice.type is {kind!r:.60}; it may be function or allowed_tools: only functions are"
                " called here, no hosted tools",
                param="tool_choice.type",
                code="unsupported_value",
            )


def _allowed(tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    return {"type": tool.get("type"), "function": {"name": tool.get("name")}}


# ---- what cannot be honoured: name -> whether a value, not null, asks for nothing ----

_TOOL_OPTIONS: Mapping[str, Harmless] = {
    "allowed_callers": lambda value: isinstance(value, list) and "direct" in value,
    "async": falsy,
    "defer_loading": falsy,
}
_INNER: Mapping[str, Mapping[str, Harmless]] = {
    "background_options": {"continuation_id": never},
    "prompt_cache_options": {"prewarm": falsy},
    "reasoning": {
        "summary": lambda value: value == "auto",
        "generate_summary": lambda value: value == "auto",
        "context": lambda value: value == "auto",
        "mode": lambda value: value == "standard",
    },
}


def _refuse(body: Asked) -> None:
    for outer, fields in _INNER.items():
        refuse_inner(getattr(body, outer, None), outer, fields)
    if isinstance(body, ResponsesRequest):
        _check_metadata(body.metadata or {})


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > MAX_METADATA:
        raise RequestError(
            f"metadata has {len(metadata)} pairs; it may have at most {MAX_METADATA}", param="metadata"
        )
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise RequestError(
                f"metadata: {key[:80]!r} or its value is too long; keys may have {MAX_METADATA_KEY}"
                f" characters, values {MAX_METADATA_VALUE}",
                param="metadata",
            )
