"""Small tokenizers that satisfy the contract: real byte-level BPE, real Metaspace, and plain bytes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Inner

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The end, the END!",
    " ščí! naïve café – Zürich – 你好,世界 – emoji 👩‍🚀🎉😀 done",
    "def f(x):\n\treturn x + 1\n\n",
] * 4


class Wrapped:
    """A ``tokenizers`` tokenizer behind ``contracts.Tokenizer``; bytes of a token by its family's rule."""

    def __init__(self, inner: Inner, token_bytes: Any) -> None:
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self.vocab_size = max(inner.get_vocab().values()) + 1
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.bos_token_id = inner.token_to_id("<s>")
        self.eos_token_id = inner.token_to_id("</s>")
        self.special_tokens: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
        self._added = {i: token.content for i, token in added.items()}
        self.longest_token: int | None = None
        self._token_bytes = token_bytes

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int:
        return self._inner.token_to_id(token)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        return self._token_bytes(self._inner.id_to_token(token_id))


class Bytes:
    """Token i is byte i; 256 is end of sequence, 257 begins one."""

    vocab_size = 258
    bos_token_id: int | None = None
    eos_token_id: int | None = 256
    special_ids = frozenset({256, 257})
    longest_token: int | None = 4
    special_tokens: dict[str, Any] = {"eos_token": "</s>"}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in self.special_ids)]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return {256: b"</s>", 257: b"<s>"}.get(token_id, b"")


@functools.cache
def byte_level() -> Wrapped:
    """As GPT-2 and Llama 3: every byte has a token, so any character may be split."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken("<kept token>", special=False)])
    byte_of = _byte_of_character()
    return Wrapped(inner, lambda token: bytes(byte_of[character] for character in token))


@functools.cache
def metaspace() -> Wrapped:
    """As Llama 2 and Mistral: ``▁`` for spaces, bytes for what has no token, one leading space dropped."""
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    inner = Inner(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *byte_tokens],
        initial_alphabet=["▁", *"abcdefghijklmnopqrstuvwxyzšč"],
        limit_alphabet=40,
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    # The trainer makes bytes special; in such tokenizers they are ordinary.
    state = json.loads(inner.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in byte_tokens]
    inner = Inner.from_str(json.dumps(state))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Wrapped(inner, _metaspace_bytes)


def _metaspace_bytes(token: str) -> bytes:
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(value): value for value in printable}
    others = [value for value in range(256) if value not in printable]
    return table | {chr(256 + index): value for index, value in enumerate(others)}
