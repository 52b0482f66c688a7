"""Request bodies of ``/v1/messages``, field for field as Anthropic has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from llmkit_openai_api.extensions import Extensions
from llmkit_openai_api.fields import Ignored, Refused
from llmkit_openai_api.schema import MAX_MESSAGES, Body, Integer, Items, Number, Object


class TextBlock(Body):
    """Text; ``cache_control`` and ``citations`` are without effect."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Body):
    """What the model thought before; its signature is not looked at."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Body):
    """Passed over: nobody here can read it."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Body):
    """A call that the model made before."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Object


class OtherBlock(Body):
    """Refused, such as an image or a document."""

    type: str


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in ("text", "thinking", "redacted_thinking", "tool_use", "tool_result") else "other"


class ToolResultBlock(Body):
    """What a call gave; where ``is_error`` is true, the text begins with ``Error:``."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[TextBlock | OtherBlock] | None = None
    is_error: bool | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(_kind),
]


class MessageParam(Body):
    """One turn; neighbours of one role are one. A last one of the assistant is continued."""

    role: Literal["user", "assistant", "system"]
    content: str | Items[Block]


class Thinking(Body):
    """``enabled`` with ``budget_tokens``, ``adaptive`` (as the model likes) or ``disabled``."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Integer, Field(ge=1024)] | None = None
    """Most tokens of thinking, where the model's thinking can be told from its answer."""
    display: Literal["summarized", "omitted"] | None = None
    """``omitted`` leaves the text of thinking blocks out; nobody summarizes here."""


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Annotated[Object, Field(alias="schema")]


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Goes to the chat template as ``reasoning_effort``."""
    format: OutputFormat | None = None


class ToolChoice(Body):
    """``auto``, ``any``, ``tool`` with a name, or ``none``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Body):
    user_id: str | None = None


class CountTokensRequest(Body):
    """``POST /v1/messages/count_tokens``."""

    model: str
    messages: Annotated[list[MessageParam], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: str | Items[TextBlock] | None = None
    tools: Items[Object] | None = None
    """Of type ``custom``, which need not be said; server tools are refused."""
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older name of ``output_config.format``."""
    cache_control: Annotated[
        Object | None, Ignored("prompts are cached by themselves", {"type": "ephemeral"})
    ] = None
    mcp_servers: Annotated[
        Items[Object] | None,
        Refused("nothing outside the model is reached", [{"type": "url"}], passes=lambda v: not v),
    ] = None
    context_management: Annotated[
        Object | None,
        Refused("a conversation is never shortened by itself", {"edits": []}, passes=lambda v: not v),
    ] = None
    speed: Annotated[Literal["standard", "fast"] | None, Ignored("there is one speed", "fast")] = None
    user_profile_id: Annotated[str | None, Ignored("nobody acts for others here", "user_1")] = None


class MessagesRequest(CountTokensRequest, Extensions):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Integer, Field(ge=1)]
    """Most tokens of thinking, text and calls together; cut to what the context has left."""
    stop_sequences: Items[str] | None = None
    stream: bool | None = None
    temperature: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Integer | None = None
    metadata: Annotated[Metadata | None, Ignored("it is the client's own", {"user_id": "u"})] = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None, Ignored("there is one, standard", "auto")
    ] = None
    container: Annotated[str | Object | None, Refused("no code is run", "container_1")] = None
    diagnostics: Annotated[Object | None, Ignored("answers carry none", {"previous_message_id": None})] = None
    inference_geo: Annotated[str | None, Refused("the server does not know where it stands", "eu")] = None
