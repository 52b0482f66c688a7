"""A client's text to ids and back: checked first, and beside the event loop where it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llmkit.contracts import Tokenizer
from llmkit.frontend.check import check_fits, check_prompt_chars
from llmkit.frontend.fields import check_text, check_token_ids

LONG = 4096
"""Characters or ids from which a thread is worth its price: they take a millisecond and more."""


class Texts:
    """One model's tokenizer for texts and ids that somebody else wrote."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int, most_chars: int | None = None) -> None:
        """``most_chars`` of one text; None: as many as the context may hold."""
        self._tokenizer = tokenizer
        self._most_chars = most_chars
        self._max_model_len = max_model_len

    async def prompt_ids(self, text: str, *, add_special_tokens: bool, whole: bool = True) -> list[int]:
        """:raises RequestError: it is no Unicode text, or, if all of it is wanted, surely longer than the
        context.
        """
        check_text("prompt", text)
        check_prompt_chars(text, self._most_chars)
        if whole:
            check_fits(text, self._tokenizer.longest_token, self._max_model_len)
        return await self._encode(text, add_special_tokens)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """However many ids. :raises RequestError: it is no Unicode text, or has too many characters."""
        check_text("prompt", text)
        check_prompt_chars(text, self._most_chars)
        return await self._encode(text, add_special_tokens)

    async def decode(self, ids: Sequence[int], name: str) -> str:
        """:raises RequestError: one of ``ids``, which the request calls ``name``, is no token id."""
        check_token_ids(name, ids, self._tokenizer.vocab_size)
        if len(ids) < LONG:
            return self._tokenizer.decode(ids)
        return await asyncio.to_thread(self._tokenizer.decode, ids)

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
