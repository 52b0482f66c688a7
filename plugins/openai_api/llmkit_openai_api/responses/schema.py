"""Request bodies of ``/v1/responses``, field for field as OpenAI has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from llmkit_openai_api.extensions import Extensions
from llmkit_openai_api.fields import Ignored, Refused
from llmkit_openai_api.schema import MAX_MESSAGES, Body, Integer, Items, Number, Object

MAX_TOP_LOGPROBS = 20
"""OpenAI's; what is asked for is bounded by ``--max-logprobs`` too."""

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class InputPart(Body):
    """A piece of a message: ``input_text``, ``output_text`` or ``refusal``."""

    type: str
    text: str | None = None
    refusal: str | None = None


Parts = str | Items[InputPart]


class InputMessage(Body):
    """A turn of anybody."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: str | None = None


class InputFunctionCall(Body):
    """A call that the model made before."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None


class InputFunctionOutput(Body):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    id: str | None = None


class ReasoningPart(Body):
    type: str | None = None
    text: str


class InputReasoning(Body):
    """What the model thought before; its ``content``, or else its ``summary``, goes to the template."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Items[ReasoningPart] | None = None
    content: Items[ReasoningPart] | None = None
    encrypted_content: str | None = None


class ItemReference(Body):
    """An item of a response that is stored here."""

    type: Literal["item_reference"] | None = None
    id: str


class OtherItem(Body):
    """Refused: an item of a tool that runs elsewhere."""

    type: str


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind in _KINDS:
        return str(kind)
    if isinstance(kind, str):
        return "other"
    return "item_reference" if isinstance(value, dict) and set(value) == {"id"} else "message"


_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputFunctionCall, Tag("function_call")]
    | Annotated[InputFunctionOutput, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_kind),
]
Input = str | Annotated[list[InputItem], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class TextFormat(Body):
    """``text``, ``json_object``, or ``json_schema`` with a name and a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[Object | None, Field(alias="schema")] = None
    strict: bool | None = None


class Text(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Goes to the chat template under this name."""


class ReasoningOptions(Body):
    effort: Effort | None = None
    """Goes to the chat template as ``reasoning_effort``."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Nobody summarizes here: ``auto`` gives none, the others are refused."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The older name of ``summary``."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """``auto`` alone: the chat template says which reasoning it shows."""
    mode: str | None = None
    """``standard`` alone."""


class ResponsesStreamOptions(Body):
    include_obfuscation: bool | None = None
    """Without effect: there is none."""


class Asked(Body):
    """What a response and the count of its input's tokens have in common."""

    model: str | None = None
    input: Input | None = None
    instructions: str | None = None
    """A system message in front; that of the previous response is not taken over."""
    previous_response_id: str | None = None
    conversation: Annotated[
        str | Object | None, Refused("conversations are not kept; see previous_response_id", "conv_1")
    ] = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: Text | None = None
    tool_choice: str | Object | None = None
    tools: Items[Object] | None = None
    """Functions; tools that OpenAI hosts are refused."""
    truncation: Literal["auto", "disabled"] | None = None
    """``auto`` leaves out the oldest tokens of a prompt that is too long."""


class InputTokensRequest(Asked):
    """``POST /v1/responses/input_tokens``."""

    personality: Annotated[
        str | None, Refused("say in the instructions how answers shall be", "friendly")
    ] = None


class ResponsesRequest(Asked, Extensions):
    """``POST /v1/responses``."""

    access_programs: Annotated[
        Object | None,
        Refused("nothing outside the model is reached", {}),
    ] = None
    background: bool | None = None
    """Answer at once; the response is to be polled, followed or cancelled. Needs ``store``."""
    background_options: Object | None = None
    """``completion_window`` is without effect; ``continuation_id`` is refused."""
    context_management: Annotated[
        Items[Object] | None,
        Refused(
            "a conversation is never shortened by itself; see truncation",
            [{"type": "compaction"}],
            passes=lambda v: not v,
        ),
    ] = None
    image: Annotated[
        Object | None,
        Ignored("there are no images", {}),
    ] = None
    include: Items[Include] | None = None
    """``message.output_text.logprobs``; the others name what never is in a response here."""
    max_output_tokens: Annotated[Integer, Field(ge=1)] | None = None
    """Most tokens of reasoning, text and calls together."""
    max_tool_calls: Annotated[Integer, Field(ge=1)] | None = None
    """Without effect: it counts calls of hosted tools."""
    metadata: dict[str, str] | None = None
    """Given back: at most 16 pairs, keys up to 64 and values up to 512 characters."""
    moderation: Annotated[
        Object | None, Refused("one model generates text here, and reaches nothing else", {"model": "m"})
    ] = None
    prompt: Annotated[
        Object | None, Refused("prompts are not kept; send instructions and input", {"id": "p"})
    ] = None
    prompt_cache_key: str | None = None
    """Given back."""
    prompt_cache_options: Object | None = None
    """Without effect but for ``prewarm``, which is refused."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    """Given back."""
    safety_identifier: str | None = None
    """Given back."""
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None,
        Ignored("there is one tier; answers say `default`", "flex"),
    ] = None
    store: bool | None = None
    """Keep the response, as it is by default."""
    stop: str | Items[str] | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_k: Integer | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Besides that of each token, where ``include`` asks for logprobs."""
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    truncate_prompt_tokens: Integer | None = None
    user: str | None = None
    """Given back."""
