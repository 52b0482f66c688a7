"""Request bodies. Strict: a value of the wrong JSON type is refused, never converted.

Ranges are checked with the rest of a request in the front process, OpenAI's narrower ones here; unknown
fields are kept in ``model_extra`` for :mod:`llmkit_openai_api.fields` to judge. A field's docstring is its
description in ``/openapi.json`` and in docs/api.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llmkit_openai_api.fields import Ignored, Refused

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
MAX_TEMPERATURE = 2.0
"""OpenAI's."""
MAX_DOCUMENTS = 1024


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
Temperature = Annotated[float, Field(strict=True, ge=0, le=MAX_TEMPERATURE)]
Name = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]
"""What may stand in a header and in a log."""
T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]


class Body(BaseModel):
    """Base of all: strict types, finite numbers, unknown fields kept."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


def _nothing(value: Any) -> bool:
    """Asks for nothing: false, an empty list, an empty object."""
    return not value


_NOTHING_KEPT = "no answer is kept for a later request"
_OWN_CACHE = "the prefix cache finds equal prompts by itself"
_ONE_MODEL = "one model generates text here, and reaches nothing else"
_TEXT_ONLY = "text in, text out"


class StreamOptions(Body):
    include_usage: bool | None = None
    """A last chunk, without choices, has the usage."""
    continuous_usage_stats: bool | None = None
    """vLLM's: every chunk has the usage of its choice so far."""
    include_obfuscation: Annotated[
        bool | None, Ignored("chunks are never padded against listeners: use TLS", True)
    ] = None


class ResponseFormat(Body):
    type: str
    """``text``, ``json_object``, ``json_schema``, ``regex``, ``grammar`` or ``structural_tag``."""
    json_schema: Object | None = None
    """With ``type`` ``json_schema``: its ``schema`` is what the answer must fit."""
    pattern: str | None = None
    """With ``type`` ``regex``."""
    grammar: str | None = None
    """With ``type`` ``grammar``: EBNF or Lark."""
    format: Object | None = None
    """With ``type`` ``structural_tag``, as xgrammar has it."""
    structures: Items[Object] | None = None
    """With ``type`` ``structural_tag``: the older form, with ``triggers``."""
    triggers: Items[str] | None = None
    """With ``structures``: texts behind which one of them must follow."""


class Common(Body):
    """What OpenAI has in every request that generates."""

    model: str | None = None
    """One of the served names; any other is a 404. Absent: the model that is served."""
    user: Annotated[str | None, Ignored("callers are told apart by their keys", "someone")] = None
    safety_identifier: Annotated[str | None, Ignored("callers are told apart by their keys", "someone")] = (
        None
    )
    metadata: Annotated[Object | None, Ignored(_NOTHING_KEPT, {"a": "b"})] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority", "fast"] | None,
        Ignored("there is one tier; answers say `default`", "flex"),
    ] = None
    prompt_cache_key: Annotated[str | None, Ignored(_OWN_CACHE, "k")] = None
    prompt_cache_retention: Annotated[str | None, Ignored(_OWN_CACHE, "24h")] = None
    prompt_cache_options: Annotated[Object | None, Ignored(_OWN_CACHE, {"mode": "implicit"})] = None


class TextOnly(Body):
    """vLLM's fields about images and sound."""

    mm_processor_kwargs: Annotated[Any, Refused(_TEXT_ONLY, {"num_crops": 4}, passes=_nothing)] = None
    media_io_kwargs: Annotated[Any, Refused(_TEXT_ONLY, {"video": {}}, passes=_nothing)] = None


class Unsupported(TextOnly):
    """vLLM's fields about generation that nothing here honours."""

    guided_decoding_backend: Annotated[
        str | None, Ignored("`--grammar-backend` says what constrains; each does the same", "auto")
    ] = None
    guided_whitespace_pattern: Annotated[
        Any, Refused("white space between JSON's parts is as the grammar has it", "[ ]?")
    ] = None
    kv_transfer_params: Annotated[
        Any, Refused("no engine hands KV to another", {"do_remote_decode": True}, passes=_nothing)
    ] = None
    logits_processors: Annotated[
        Any, Refused("a plugin brings them, and plugin_args speaks to it", ["a.b"], passes=_nothing)
    ] = None
    repetition_detection: Annotated[
        Any, Refused("use stop, max_tokens or a penalty", {"max_pattern_size": 4}, passes=_nothing)
    ] = None
    truncation_side: Annotated[
        Any, Refused("truncate_prompt_tokens keeps the prompt's end", "right", passes=lambda v: v == "left")
    ] = None


class SamplingBody(Common, Unsupported):
    """What chat and plain completions share. None, like null, is "not given"."""

    n: Integer | None = None
    """Choices generated and returned."""
    best_of: Integer | None = None
    """Choices generated, of which the ``n`` likeliest are returned; beams where beams are searched."""
    use_beam_search: bool | None = None
    """Search instead of sampling."""
    length_penalty: Number | None = None
    """Of a beam search."""
    early_stopping: bool | Literal["never"] | None = None
    """Of a beam search."""
    max_tokens: Integer | None = None
    """Most tokens of an answer."""
    min_tokens: Integer | None = None
    """Fewest tokens of an answer."""
    temperature: Temperature | None = None
    """0 takes the likeliest token."""
    top_p: Number | None = None
    """Samples from the likeliest tokens that together have this probability."""
    top_k: Integer | None = None
    """Samples from so many of the likeliest tokens; 0 and -1 mean all."""
    min_p: Number | None = None
    """Samples from tokens at least so likely, as a share of the likeliest one's probability."""
    seed: Integer | None = None
    """The same seed, the same answer."""
    presence_penalty: Number | None = None
    """Subtracted once from what the answer has."""
    frequency_penalty: Number | None = None
    """Subtracted for each time the answer has it."""
    repetition_penalty: Number | None = None
    """Divides positive and multiplies negative logits of what prompt or answer have."""
    logit_bias: Annotated[dict[str, Number], Field(max_length=MAX_ITEMS)] | None = None
    """Token ids to what is added to their logits, -100 to 100."""
    stop: str | Items[str] | None = None
    """Texts that end the answer."""
    stop_token_ids: Items[Integer] | None = None
    """Tokens that end the answer."""
    bad_words: Items[str] | None = None
    """Texts that may not be completed."""
    allowed_token_ids: Annotated[list[Integer], Field(max_length=MAX_TOKENS, fail_fast=True)] | None = None
    """All that may be sampled."""
    truncate_prompt_tokens: Integer | None = None
    """Keep the prompt's last so many tokens; -1: as many as fit."""
    prompt_logprobs: Integer | None = None
    """Alternatives for each token of the prompt."""
    thinking_token_budget: Integer | None = None
    """Most tokens of reasoning."""
    return_tokens_as_token_ids: bool | None = None
    """Logprobs write tokens as ``token_id:ID``."""
    return_token_ids: bool | None = None
    """The answer has ``prompt_token_ids`` and ``token_ids``."""
    include_stop_str_in_output: bool | None = None
    """Keep the stop string that ended the answer."""
    ignore_eos: bool | None = None
    """Go on behind the model's own end."""
    skip_special_tokens: bool | None = None
    """False shows special tokens."""
    spaces_between_special_tokens: Annotated[
        bool | None, Ignored("special tokens that show are never parted by spaces", False)
    ] = None
    add_special_tokens: bool | None = None
    """Let the tokenizer add its special tokens; true for a plain prompt, false for a chat, whose template
    writes them."""
    echo: bool | None = None
    """Begin the answer with the prompt; of a chat with the message that it continues."""
    stream: bool | None = None
    """Answer as server-sent events."""
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    """Only requests of the same salt share cached prefixes."""
    priority: Integer | None = None
    """Lower goes first, where the server's ``--scheduling-policy`` looks at it; refused where not."""
    request_id: Name | None = None
    """In the answer's id and in the server's log; without it ``X-Request-Id`` is in the log."""
    plugin_args: Object | None = None
    """An object for each plugin that prepares requests and each logits processor."""
    vllm_xargs: Object | None = None
    """The same under vLLM's name."""
    response_format: ResponseFormat | None = None
    """What the answer must be."""
    structured_outputs: Object | None = None
    """What the answer must be, in one of vLLM's words: ``json``, ``regex``, ``choice``, ``grammar``,
    ``json_object`` or ``structural_tag``."""
    guided_json: str | Object | bool | None = None
    """A JSON schema that the answer must fit."""
    guided_regex: str | None = None
    """A regular expression that the answer must match."""
    guided_choice: Items[str] | None = None
    """What the answer must be one of."""
    guided_grammar: str | None = None
    """A grammar, EBNF or Lark, that the answer must fit."""
    guided_json_object: bool | None = None
    """The answer must be a JSON object."""
    structural_tag: str | Object | None = None
    """Texts behind which the answer must fit a schema."""


class ContentPart(Body):
    """The template says which types it takes."""

    type: str
    """``text`` (also ``input_text``, ``output_text``) or ``refusal``; others are refused by name."""
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Body):
    name: str
    arguments: str | Object | None = None
    """JSON text, or the object itself."""


class ToolCall(Body):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class Message(Body):
    """One turn. Null content is an assistant's that said nothing; other fields go to the template."""

    role: str = Field(min_length=1, max_length=64)
    """``system``, ``developer``, ``user``, ``assistant``, ``tool`` or ``function``."""
    content: str | Items[ContentPart] | None = None
    """A text or a list of parts; an assistant's may be null."""
    name: str | None = None
    """Of who speaks, for templates that show it; of the function whose result a ``function`` turn has."""
    refusal: str | None = None
    """What an assistant said instead of an answer; stands for its content where that is empty."""
    reasoning_content: str | None = None
    """An assistant's reasoning, for templates that show it."""
    reasoning: str | None = None
    """The same under its newer name."""
    tool_calls: Items[ToolCall] | None = None
    """An assistant's calls."""
    tool_call_id: str | None = None
    """Which call a ``tool`` turn answers."""
    function_call: FunctionCall | None = None
    """An assistant's only call, in the older form; the ``function`` turn behind it is its result."""
    audio: Annotated[Any, Refused(_TEXT_ONLY, {"id": "a"})] = None


def _few_parts(messages: Any) -> Any:
    parts = 0
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            held = (message.get("content"), message.get("tool_calls"))
            parts += sum(len(items) for items in held if isinstance(items, list))
    if parts > MAX_PARTS:
        raise ValueError(f"messages have {parts} content parts and tool calls; at most {MAX_PARTS} are read")
    return messages


Messages = Annotated[
    list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), BeforeValidator(_few_parts)
]


class Rendering(Body):
    """How the template renders messages."""

    add_generation_prompt: bool | None = None
    """End with the opening of an assistant's turn; true unless the last message is continued."""
    continue_final_message: bool | None = None
    """Leave the last message open, for the answer to continue."""
    chat_template: str | None = None
    """A template instead of the model's, where the server has `--trust-request-chat-template`."""
    chat_template_kwargs: Object | None = None
    """Variables of the template; those that the server sets are refused."""
    documents: Annotated[list[Object], Field(max_length=MAX_DOCUMENTS)] | None = None
    """What the answer may draw on; refused where the template reads no documents."""
    tools: Items[Object] | None = None
    """Functions that the model may call."""


class Conversation(Rendering):
    """Messages and what is said of them."""

    messages: Messages
    """The conversation so far."""
    reasoning_effort: str | None = None
    """For templates that read it."""
    tool_choice: str | Object | None = None
    """``none``, ``auto``, ``required``, a function or ``allowed_tools``."""


class ChatRequest(SamplingBody, Conversation):
    """``POST /v1/chat/completions``."""

    max_completion_tokens: Integer | None = None
    """Most tokens of an answer, reasoning included; goes before ``max_tokens``."""
    parallel_tool_calls: bool | None = None
    """False ends an answer with its first call."""
    include_reasoning: bool | None = None
    """False leaves the reasoning out of the answer."""
    parse_output: bool | None = None
    """False leaves calls and reasoning in the content, as the model wrote them."""
    logprobs: bool | None = None
    """The answer has the logprob of each of its tokens."""
    top_logprobs: Annotated[Integer, Field(ge=0)] | None = None
    """Alternatives for each token of the answer; needs ``logprobs``."""
    modalities: Annotated[Any, Refused(_TEXT_ONLY, ["text", "audio"], passes=lambda v: v == ["text"])] = None
    store: Annotated[bool | None, Ignored(_NOTHING_KEPT, True)] = None
    prediction: Annotated[
        Object | None,
        Ignored("it is about speed only: see --speculator", {"type": "content", "content": "a"}),
    ] = None
    audio: Annotated[Any, Refused(_TEXT_ONLY, {"voice": "alloy", "format": "wav"})] = None
    functions: Annotated[
        Any, Refused("it is the older form of tools; send tools", [{"name": "f"}], passes=_nothing)
    ] = None
    function_call: Annotated[
        Any,
        Refused(
            "it is the older form of tool_choice; send tool_choice",
            {"name": "f"},
            passes=lambda v: v in ("none", "auto"),
        ),
    ] = None
    moderation: Annotated[Any, Refused(_ONE_MODEL, {"model": "m"})] = None
    verbosity: Annotated[
        Any, Refused("say in a message how long answers shall be", "low", passes=lambda v: v == "medium")
    ] = None
    web_search_options: Annotated[Any, Refused(_ONE_MODEL, {"search_context_size": "low"})] = None


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
    """A text, token ids, or a list of either."""
    logprobs: Integer | None = None
    """Alternatives for each token of the answer."""
    suffix: Annotated[Any, Refused("the model only continues its prompt", " end", passes=_nothing)] = None
    prompt_embeds: Annotated[Any, Refused(_TEXT_ONLY, "AAAA")] = None


class TokenizeRequest(Rendering, TextOnly):
    """``POST /tokenize``: either ``prompt`` or ``messages``."""

    model: str | None = None
    """One of the served names."""
    prompt: str | None = None
    """A text to tokenize."""
    messages: Messages | None = None
    """A conversation to render and tokenize."""
    add_special_tokens: bool | None = None
    """Let the tokenizer add its special tokens; true for a prompt, false for messages."""
    return_token_strs: bool | None = None
    """The answer has the text of each token."""


class DetokenizeRequest(Body):
    """``POST /detokenize``."""

    model: str | None = None
    """One of the served names."""
    tokens: Annotated[list[Any], Field(max_length=MAX_TOKENS)]
    """Token ids; checked with all other token ids, in the front process."""
