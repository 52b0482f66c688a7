"""Responses, their items and the events of their streams, field for field as OpenAI has them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from llmkit_openai_api.wire import TokenLogprobs

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str = ""
    logprobs: list[TokenLogprobs] = []
    annotations: list[Any] = []


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    text: str = ""


class OutputMessage(msgspec.Struct, frozen=True, tag="message"):
    id: str
    status: ItemStatus = "in_progress"
    content: list[OutputText] = []
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag="reasoning"):
    id: str
    status: ItemStatus = "in_progress"
    content: list[ReasoningText] = []
    summary: list[Any] = []
    encrypted_content: None = None


class FunctionCall(msgspec.Struct, frozen=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "in_progress"


OutputItem = OutputMessage | ReasoningItem | FunctionCall


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failed(msgspec.Struct, frozen=True):
    """Why a response failed; the codes are OpenAI's."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class Incomplete(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it is at one moment, with what was asked."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: Failed | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


# ---- events ----


class Lifecycle(msgspec.Struct, frozen=True):
    """``response.created``, ``.queued``, ``.in_progress``, ``.completed``, ``.incomplete``, ``.failed``."""

    type: str
    response: Response
    sequence_number: int


class ItemEvent(msgspec.Struct, frozen=True):
    """``response.output_item.added`` and ``.done``."""

    type: str
    output_index: int
    item: OutputItem
    sequence_number: int


class PartEvent(msgspec.Struct, frozen=True):
    """``response.content_part.added`` and ``.done``."""

    type: str
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText
    sequence_number: int


class TextDelta(msgspec.Struct, frozen=True):
    """``response.output_text.delta`` and ``response.reasoning_text.delta``, which has no logprobs."""

    type: str
    item_id: str
    output_index: int
    content_index: int
    delta: str
    sequence_number: int
    logprobs: list[TokenLogprobs] | UnsetType = UNSET


class TextDone(msgspec.Struct, frozen=True):
    """``response.output_text.done`` and ``response.reasoning_text.done``."""

    type: str
    item_id: str
    output_index: int
    content_index: int
    text: str
    sequence_number: int
    logprobs: list[TokenLogprobs] | UnsetType = UNSET


class ArgumentsDelta(msgspec.Struct, frozen=True):
    type: str
    item_id: str
    output_index: int
    delta: str
    sequence_number: int


class ArgumentsDone(msgspec.Struct, frozen=True):
    type: str
    item_id: str
    output_index: int
    name: str
    arguments: str
    sequence_number: int


class ErrorEvent(msgspec.Struct, frozen=True):
    """The stream ends without the response's end: it was cancelled."""

    type: str
    code: str
    message: str
    param: None
    sequence_number: int


StreamEvent = (
    Lifecycle | ItemEvent | PartEvent | TextDelta | TextDone | ArgumentsDelta | ArgumentsDone | ErrorEvent
)
