"""Messages and the events of their streams, field for field as Anthropic has them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str = ""
    citations: None = None


class Thinking(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str = ""
    signature: str = ""


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = {}


Block = Text | Thinking | ToolUse


class TokenDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int = 0


class MessageUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    """Without those from the cache."""
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: TokenDetails
    cache_creation_input_tokens: int = 0
    service_tier: str = "standard"


class Message(msgspec.Struct, frozen=True, tag="message"):
    id: str
    model: str
    content: list[Block]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    role: str = "assistant"


# ---- events ----


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    message: Message


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    pass


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    index: int


class End(msgspec.Struct, frozen=True):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    delta: End
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    pass


StreamEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
