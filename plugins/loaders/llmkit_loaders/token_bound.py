"""How much text one token can stand for, where a tokenizer loses none on the way."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import models

from llmkit_loaders.token_bytes import BYTE_TO_CHAR

_SPACE = "▁"
_SPLITS = {"ByteLevel", "Digits", "Split"}
_ORDINARY = [*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1)]
"""Bytes of characters that people write: no control characters, no planes without any."""


def longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """Most UTF-8 bytes of a text that become one token; None where that has no bound.

    A bound needs a way that drops nothing that people write: BPE over all bytes, or one that falls back
    to bytes, with no normalizer but one that marks spaces. Composing normalizers, unknown tokens and added
    tokens that swallow spaces make little of much text.
    """
    added = backend.get_added_tokens_decoder().values()
    if not isinstance(backend.model, models.BPE) or any(token.lstrip or token.rstrip for token in added):
        return None
    marks_spaces = _marks_spaces(backend)
    if marks_spaces is None:
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if marks_spaces:
        # The mark may stand for itself, too, so it counts as the three bytes it has.
        lengths = {len(token.encode()) for token in vocabulary}
    else:
        lengths = {len(token) for token in vocabulary}  # a character a byte
    return max(lengths | {len(token.content.replace(" ", _SPACE).encode()) for token in added}, default=None)


def _marks_spaces(backend: tokenizers.Tokenizer) -> bool | None:
    """False: byte-level. True: sentencepiece-like with bytes for what has no token. None: neither."""
    normalizers, pre_tokenizers = _steps(backend.normalizer), _steps(backend.pre_tokenizer)
    if any(step.get("behavior") == "Removed" for step in pre_tokenizers):
        return None
    kinds = {step["type"] for step in pre_tokenizers}
    if not normalizers and "ByteLevel" in kinds and kinds <= _SPLITS:
        has_all = all(
            backend.token_to_id(char) is not None for char in map(BYTE_TO_CHAR.__getitem__, _ORDINARY)
        )
        return False if has_all else None
    if all(map(_only_marks, normalizers)) and kinds <= {"Metaspace", "Split", "Digits"}:
        has_all = all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
        return True if backend.model.byte_fallback and has_all else None
    return None


def _only_marks(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        return (normalizer["pattern"], normalizer["content"]) == ({"String": " "}, _SPACE)
    return str(normalizer["type"]) == "Prepend"


def _steps(component: Any) -> list[dict[str, Any]]:
    return [] if component is None else _flat(json.loads(component.__getstate__()))


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    inner = step.get("normalizers", step.get("pretokenizers", ()))
    return [flat for each in inner for flat in _flat(each)]
