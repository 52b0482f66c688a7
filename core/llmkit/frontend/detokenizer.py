"""Token ids to text, a token at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from llmkit.contracts import Tokenizer

_LONGEST_TAIL = 3
"""Bytes of a UTF-8 character that can be there without its last one."""


class Detokenizer:
    """Turns one choice's output ids into text; owns the bytes of its unfinished last character.

    The pieces joined equal the text of prompt and output together, less that of the prompt: the
    leading space of the first token stays where a prompt stands before it, and a character whose
    first bytes ended the prompt comes out whole. Only an unfinished UTF-8 tail is kept back. Bytes
    that are no UTF-8 become U+FFFD, one for each ill-formed run as Unicode recommends and as
    byte-level tokenizers decode. A token costs the same however long the text is.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spelt_out: frozenset[int] = frozenset(),
    ) -> None:
        """``spelt_out``: special tokens that are not skipped either way."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        if spelt_out:
            self._skipped -= spelt_out
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        prompt_tail = self._tail(prompt_ids)
        self._utf8.decode(prompt_tail)
        # Nothing visible stands before the first token: the tokenizer may drop its leading space.
        self._at_start = not prompt_tail
        # Where the prompt ends within a character, its own text already shows these U+FFFD for it.
        self._shown = self._utf8.getstate()[0].decode(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text that became certain with this token; often a word, sometimes nothing."""
        raw = self._bytes(token_id)
        if self._at_start and raw:
            self._at_start = False
            if raw[:1] == b" " and self._tokenizer.decode([token_id]) == raw[1:].decode(errors="replace"):
                raw = raw[1:]
        return self._decode(raw, final=False)

    def finish(self) -> str:
        """The end: an unfinished tail becomes U+FFFD."""
        return self._decode(b"", final=True)

    def _decode(self, raw: bytes, *, final: bool) -> str:
        text = self._utf8.decode(raw, final)
        if self._shown and text:
            text = text.removeprefix(self._shown)
            self._shown = ""
        return text

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._skipped or not 0 <= token_id < self._tokenizer.vocab_size:
            return b""
        return self._tokenizer.token_bytes(token_id)

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes, enough to tell whether it ends within a character."""
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._bytes(token_id) + tail
            if len(tail) >= _LONGEST_TAIL:
                break
        return tail
