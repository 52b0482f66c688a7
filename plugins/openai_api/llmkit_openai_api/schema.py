"""Request bodies. Strict: a value of the wrong JSON type is refused, never converted.

Ranges are checked with the rest of a request in the front process; unknown fields are kept in
``model_extra`` for :mod:`llmkit_openai_api.request` to judge.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_EXACT = 2**53
LEAST, MOST = -(2**63), 2**63 - 1
"""Of an integer."""
MAX_ITEMS = 4096
"""Of a list or an object in a body, where nothing lower holds: it is checked before its items are, one
by one. What a field means has its own limit in the front process."""
MAX_MESSAGES = 8192
MAX_PARTS = 32_768
"""Content parts and tool calls of all messages together."""
MAX_TOKENS = 1 << 20
"""Ids to detokenize."""


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 2.0 is the integer 2. :raises ValueError: it has more than 64 bits."""
    if type(value) is int and not LEAST <= value <= MOST:
        raise ValueError(f"must be from {LEAST} to {MOST}")
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT:
        return int(value)
    return value


Integer = Annotated[
    int, BeforeValidator(_whole), Field(json_schema_extra={"minimum": LEAST, "maximum": MOST})
]
Number = Annotated[float, Field(strict=True)]
Object = dict[str, Any]
T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MAX_ITEMS)]


class Body(BaseModel):
    """Base of all: strict types, finite numbers, unknown fields kept."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: every chunk has the usage of its choice so far."""


class ResponseFormat(Body):
    type: str
    json_schema: Object | None = None
    pattern: str | None = None
    grammar: str | None = None
    format: Object | None = None
    structures: Items[Object] | None = None
    triggers: Items[str] | None = None


class SamplingBody(Body):
    """What chat and plain completions share. None, like null, is "not given"."""

    model: str | None = None
    n: Integer | None = None
    best_of: Integer | None = None
    use_beam_search: bool | None = None
    length_penalty: Number | None = None
    early_stopping: bool | Literal["never"] | None = None
    max_tokens: Integer | None = None
    min_tokens: Integer | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    seed: Integer | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: Annotated[dict[str, Number], Field(max_length=MAX_ITEMS)] | None = None
    stop: str | Items[str] | None = None
    stop_token_ids: Items[Integer] | None = None
    bad_words: Items[str] | None = None
    allowed_token_ids: Annotated[list[Integer], Field(max_length=MAX_TOKENS)] | None = None
    truncate_prompt_tokens: Integer | None = None
    prompt_logprobs: Integer | None = None
    thinking_token_budget: Integer | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Integer | None = None
    plugin_args: Object | None = None
    vllm_xargs: Object | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Object | None = None
    guided_json: str | Object | bool | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    structural_tag: str | Object | None = None


class ContentPart(Body):
    """The template says which types it takes."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Body):
    name: str
    arguments: str | Object | None = None


class ToolCall(Body):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class Message(Body):
    """One turn. Null content is an assistant's that said nothing; other fields go to the template."""

    role: str = Field(min_length=1, max_length=64)
    content: str | Items[ContentPart] | None = None
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None


def _few_parts(messages: Any) -> Any:
    parts = 0
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            held = (message.get("content"), message.get("tool_calls"))
            parts += sum(len(items) for items in held if isinstance(items, list))
    if parts > MAX_PARTS:
        raise ValueError(f"messages have {parts} content parts and tool calls; at most {MAX_PARTS} are read")
    return messages


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(_few_parts)]


class Conversation(Body):
    """Messages and how the template renders them."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    reasoning_effort: str | None = None
    tools: Items[Object] | None = None
    tool_choice: str | Object | None = None


class ChatRequest(SamplingBody, Conversation):
    """``POST /v1/chat/completions``."""

    max_completion_tokens: Integer | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    parse_output: bool | None = None
    """False leaves calls and reasoning in the content, as the model wrote them."""
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0)] | None = None
    modalities: Items[str] | None = None


class CompletionRequest(SamplingBody):
    """``POST /v1/completions``."""

    prompt: Any = Field(
        json_schema_extra={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    )
    logprobs: Integer | None = None
    suffix: str | None = None


class TokenizeRequest(Body):
    """``POST /tokenize``: either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    tools: Items[Object] | None = None


class DetokenizeRequest(Body):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: Annotated[list[Any], Field(max_length=MAX_TOKENS)]
    """Checked with all other token ids, in the front process."""
