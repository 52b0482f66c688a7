"""Request bodies of the pooling routes; strict, as those of :mod:`llmkit_openai_api.schema`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.config import JsonDict

from llmkit_openai_api.fields import Ignored
from llmkit_openai_api.schema import (
    Body,
    Conversation,
    Integer,
    Items,
    Message,
    Messages,
    Name,
    Object,
    TextOnly,
)

MAX_INPUTS = 2048
"""Texts of one request; OpenAI's."""
_TEXT: JsonDict = {"type": "string"}
_TEXTS: JsonDict = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_INPUTS}
_IDS: JsonDict = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_ID_LISTS: JsonDict = {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_INPUTS}
_DOCUMENT: JsonDict = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}

Texts = Annotated[
    Any, Field(json_schema_extra={"anyOf": [_TEXT, _TEXTS]}, description="A text, or a list of texts.")
]


class PoolingBody(TextOnly):
    """What all of them share."""

    model: str | None = Field(None, description="Name of the served model; 404 for another.")
    truncate_prompt_tokens: Integer | None = Field(
        None,
        description="Keep the first so many tokens of each text, special tokens included; -1: what the model"
        " takes. Without it a longer text is refused.",
    )
    priority: Integer | None = Field(None, description="Lower goes first, where the scheduling policy looks.")
    cache_salt: str | None = Field(None, description="Requests with different salts share no cached prefix.")
    user: Annotated[str | None, Ignored("callers are told apart by their keys", "someone")] = None
    request_id: Name | None = Field(None, description="In the server's log; without it X-Request-Id is.")


class TextsBody(PoolingBody):
    """Texts, ids or a conversation, each pooled by itself."""

    input: Any = Field(
        None,
        json_schema_extra={"anyOf": [_TEXT, _TEXTS, _IDS, _ID_LISTS]},
        description="A text, a list of texts, a list of token ids, or a list of those: 2048 inputs at most.",
    )
    messages: Messages | None = Field(
        None, description="Instead of input: a conversation, rendered with the model's chat template."
    )
    add_special_tokens: bool | None = Field(
        None,
        description="Whether a text gets the tokens that the tokenizer begins and ends texts with; true by"
        " default, and false for messages, whose template writes its own.",
    )
    add_generation_prompt: bool | None = Field(None, description="Of messages; false by default.")
    continue_final_message: bool | None = Field(None, description="Of messages; false by default.")
    chat_template_kwargs: Object | None = Field(None, description="Further variables of the chat template.")
    prompt_name: str | None = Field(
        None, description="Which of the model's own prompts (sentence-transformers) stands before each text."
    )

    def conversation(self, messages: list[Message]) -> Conversation:
        """``messages`` and how they are rendered."""
        return Conversation(
            messages=messages,
            add_generation_prompt=bool(self.add_generation_prompt),
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class VectorFormat(Body):
    """How numbers are written."""

    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float: JSON numbers (the default). base64: the bytes of embed_dtype."
    )
    embed_dtype: Literal["float32", "float16"] | None = Field(
        None, description="Of the bytes under base64; float32 by default."
    )
    endianness: Literal["native", "little", "big"] | None = Field(
        None, description="Of the bytes under base64; native, which is little, by default."
    )


class EmbeddingRequest(TextsBody, VectorFormat):
    """``POST /v1/embeddings``."""

    dimensions: Integer | None = Field(
        None,
        description="First so many numbers of each embedding; refused where the model does not say that its"
        " embeddings can be cut.",
    )
    normalize: bool | None = Field(
        None, description="Whether embeddings have length 1; as the model has it by default."
    )
    use_activation: bool | None = Field(None, description="The same under vLLM's name.")


class PoolingRequest(EmbeddingRequest):
    """``POST /pooling``."""

    task: str | None = Field(
        None,
        max_length=64,
        description="embed, classify, token_embed or token_classify; by default what the model is made for.",
    )
    activation: bool | None = Field(None, description="An older name of use_activation.")


class ClassifyRequest(TextsBody):
    """``POST /classify``."""

    use_activation: bool | None = Field(
        None, description="Probabilities (the default), or with false the head's logits."
    )
    activation: bool | None = Field(None, description="An older name of use_activation.")


class ComparingBody(PoolingBody):
    """Pairs of texts."""

    use_activation: bool | None = Field(
        None, description="Of a cross-encoder: scores (the default), or with false the head's logits."
    )
    activation: bool | None = Field(None, description="An older name of use_activation.")


class ScoreRequest(ComparingBody):
    """``POST /score`` and ``POST /v1/score``: one text and several, or as many on both sides."""

    text_1: Texts = None
    text_2: Texts = None
    data_1: Texts = Field(None, description="text_1 under a newer name.")
    data_2: Texts = Field(None, description="text_2 under a newer name.")
    queries: Texts = Field(None, description="text_1 under a newer name.")
    documents: Texts = Field(None, description="text_2 under a newer name.")
    items: Texts = Field(None, description="documents under another name.")


class RerankRequest(ComparingBody):
    """``POST /rerank``, ``POST /v1/rerank`` and ``POST /v2/rerank``."""

    query: str = Field(description="What documents are ranked by.")
    documents: Items[Any] = Field(
        min_length=1,
        max_length=MAX_INPUTS,
        json_schema_extra={"items": {"anyOf": [_TEXT, _DOCUMENT]}},
        description="Texts, or objects with a text.",
    )
    top_n: Annotated[Integer, Field(ge=0)] | None = Field(
        None, description="How many of the best are returned; all by default, and for 0."
    )
    return_documents: bool | None = Field(
        None, description="Whether results hold their documents: by default yes, and no on /v2/rerank."
    )
