"""What routes beside chat take of vLLM's and llmkit's own fields, as chat has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from llmkit_openai_api.fields import Ignored
from llmkit_openai_api.schema import MAX_ITEMS, MAX_TOKENS, Integer, Items, Number, Object, Unsupported


class Extensions(Unsupported):
    """Fields that no API of another maker has; all mean what they mean in a chat."""

    min_p: Number | None = None
    seed: Integer | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: Integer | None = None
    logit_bias: Annotated[dict[str, Number], Field(max_length=MAX_ITEMS)] | None = None
    stop_token_ids: Items[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Annotated[
        bool | None, Ignored("special tokens that show are never parted by spaces", False)
    ] = None
    bad_words: Items[str] | None = None
    allowed_token_ids: Annotated[list[Integer], Field(max_length=MAX_TOKENS, fail_fast=True)] | None = None
    thinking_token_budget: Integer | None = None
    chat_template_kwargs: Object | None = None
    structured_outputs: Object | None = None
    cache_salt: str | None = None
    priority: Integer | None = None
    plugin_args: Object | None = None
    vllm_xargs: Object | None = None

    def extensions(self) -> dict[str, Any]:
        """Those that were given, as fields of a chat."""
        given = ((name, getattr(self, name)) for name in Extensions.__annotations__)
        return {name: value for name, value in given if value is not None}
