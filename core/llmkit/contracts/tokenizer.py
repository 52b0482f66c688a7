"""Tokenizers: text to ids and back, no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmkit.contracts.weights import CheckpointInfo, ModelFiles


class Tokenizer(Protocol):
    """Immutable and safe to call from several threads. Since 0.1."""

    vocab_size: int
    """One above the largest id that decodes."""
    bos_token_id: int | None
    eos_token_id: int | None
    special_ids: frozenset[int]
    longest_token: int | None
    """Most UTF-8 bytes of a text that become one token, so that a text is known to be too long before it
    is tokenized. None: no such bound, for what normalizes or drops parts of a text first."""
    special_tokens: dict[str, Any]
    """``bos_token`` and the like, as chat templates see them."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Special tokens spelt out in ``text`` become their ids."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD; ids beyond the vocabulary decode to nothing."""

    def token_text(self, token_id: int) -> str:
        """One token on its own, for logprobs and listings; special tokens spelt out."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for; the UTF-8 of its name for a special token."""


class PairTokenizer(Tokenizer, Protocol):
    """A tokenizer that joins two texts as its model was trained to compare them. Since 0.1."""

    def encode_pair(self, first: str, second: str, most: int | None = None) -> tuple[list[int], int | None]:
        """Ids with the special tokens around and between, and the position from which on tokens are of the
        second kind; None where the model is not told. The longer text is cut until ``most`` ids are left.
        """


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """What a tokenizer is made for. Since 0.1."""

    files: ModelFiles
    """The tokenizer's files, which ``--tokenizer`` may have set apart from the model's."""
    info: CheckpointInfo
    trust_remote_code: bool = False


class RegisterTokenizer(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[TokenizerSpec, Any], Tokenizer],
        *,
        refuses: Callable[[TokenizerSpec], str | None],
        priority: int = 0,
    ) -> None:
        """``auto`` takes the highest priority that does not refuse the files."""
