"""Tokenizer ``hf``: transformers' AutoTokenizer, for tokenizers that have no ``tokenizer.json``.

Imports transformers, and torch with it: seconds that ``fast`` does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmkit import CheckpointError
from llmkit.contracts import Tokenizer, TokenizerSpec
from llmkit_loaders.fast_tokenizer import FastTokenizer
from llmkit_loaders.token_bytes import byte_fallback, byte_level


class SlowTokenizer:
    """Wraps a tokenizer that transformers runs in Python."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._bytes_of: Callable[[str], bytes] = (
            byte_level if hasattr(inner, "byte_decoder") else byte_fallback
        )
        self._added = {i: str(token) for i, token in inner.added_tokens_decoder.items()}
        self.vocab_size: int = 1 + max(inner.get_vocab().values(), default=-1)
        self.bos_token_id: int | None = inner.bos_token_id
        self.eos_token_id: int | None = inner.eos_token_id
        self.special_ids: frozenset[int] = frozenset(inner.all_special_ids)
        self.special_tokens: dict[str, Any] = dict(inner.special_tokens_map)
        self.longest_token: int | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Special tokens spelt out in ``text`` become their ids."""
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def encode_pair(self, first: str, second: str, most: int | None = None) -> tuple[list[int], int | None]:
        """As ``contracts.PairTokenizer``."""
        cut: dict[str, Any] = {} if most is None else {"truncation": "longest_first", "max_length": most}
        joined = self._inner(first, second, return_token_type_ids=True, **cut)
        kinds = list(joined["token_type_ids"])
        return list(joined["input_ids"]), kinds.index(1) if 1 in kinds else None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD; ids beyond the vocabulary decode to nothing."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        return str(
            self._inner.decode(
                known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )

    def token_text(self, token_id: int) -> str:
        """One token on its own; special tokens spelt out."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for; empty for an unknown id."""
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        if not 0 <= token_id < self.vocab_size:
            return b""
        token = self._inner.convert_ids_to_tokens(token_id)
        return b"" if token is None else self._bytes_of(token)


def open_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """:raises CheckpointError: transformers cannot make a tokenizer of these files; in its words."""
    from transformers import AutoTokenizer

    root = spec.files.root
    is_gguf = spec.files.path.endswith(".gguf")
    options: dict[str, Any] = {"gguf_file": root.name} if is_gguf else {}
    try:
        inner = AutoTokenizer.from_pretrained(
            str(root.parent if is_gguf else root),
            trust_remote_code=spec.trust_remote_code,
            local_files_only=True,
            **options,
        )
    except Exception as error:  # whatever a tokenizer's own code raises
        raise CheckpointError(f"--tokenizer-mode hf: {root}: {type(error).__name__}: {error}") from error
    if getattr(inner, "is_fast", False):
        return FastTokenizer(inner.backend_tokenizer, inner.special_tokens_map)
    return SlowTokenizer(inner)
