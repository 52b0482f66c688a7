"""Response bodies, field for field as OpenAI has them; encoded by msgspec."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET
    """Not in a chunk's, which counts one choice so far."""


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprobs]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Null stands at the first token of an echoed prompt."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptToken(msgspec.Struct, frozen=True):
    """One of vLLM's ``prompt_logprobs``."""

    logprob: float
    rank: int
    decoded_token: str


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CalledTool(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: str = "function"


class FunctionDelta(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(msgspec.Struct, frozen=True):
    """``id``, ``type`` and the name are in a call's first one only."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reasoning has two names: older clients know the first, vLLM's newer ones the second."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class TokenIds(msgspec.Struct, frozen=True, kw_only=True):
    """What ``return_token_ids`` adds to a choice."""

    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(TokenIds, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    """vLLM's: the stop string or token id that ended it; only with ``finish_reason``."""


class ChatMessage(msgspec.Struct, frozen=True):
    content: str | None
    """Null where there are calls or reasoning and no text."""
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[CalledTool] | UnsetType = UNSET


class ChatChoice(TokenIds, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None


class CompletionChoice(TokenIds, frozen=True, kw_only=True):
    """Of a whole answer and of a chunk alike."""

    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptToken] | None] | UnsetType = UNSET

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class Envelope(msgspec.Struct, frozen=True):
    """What every chunk and every whole answer is wrapped in."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice | ChatChoice | CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Of a chat; a plain completion has them in its choices, for it may have several prompts."""
    prompt_logprobs: list[dict[str, PromptToken] | None] | UnsetType = UNSET


def json_response(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
