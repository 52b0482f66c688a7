"""Tokenizer ``fast``: the ``tokenizers`` library, from ``tokenizer.json`` or from GGUF metadata.

Ids are those of transformers' AutoTokenizer without importing it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from llmkit import CheckpointError
from llmkit.contracts import TokenizerSpec
from llmkit_loaders.hf_directory import read_json
from llmkit_loaders.token_bound import longest_token
from llmkit_loaders.token_bytes import spelling_of

SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
MAX_TOKENIZER_BYTES = 512 << 20
MAX_KNOWN_TOKENS = 1 << 16
"""Tokens whose bytes are kept, since every token of every output is looked up."""


class FastTokenizer:
    """Owns one ``tokenizers.Tokenizer`` and never changes it after construction."""

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
        self._bytes_of = spelling_of(_decoder_of(backend))
        self._known_bytes = lru_cache(MAX_KNOWN_TOKENS)(self._find_bytes)
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.special_tokens: dict[str, Any] = dict(special_tokens)
        self.special_ids: frozenset[int] = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.longest_token: int | None = longest_token(backend)
        self.bos_token_id: int | None = self._id_of("bos_token")
        self.eos_token_id: int | None = self._id_of("eos_token")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Special tokens spelt out in ``text`` become their ids."""
        # As a batch: only those let other threads run meanwhile, and "fast" leaves out offsets.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def encode_pair(self, first: str, second: str, most: int | None = None) -> tuple[list[int], int | None]:
        """As ``contracts.PairTokenizer``."""
        one, other = self._backend.encode_batch([first, second], add_special_tokens=False)
        if most is not None:
            room = max(0, most - self._backend.num_special_tokens_to_add(is_pair=True))
            kept = _shares(len(one), len(other), room)
            one.truncate(kept[0])
            other.truncate(kept[1])
        joined = self._backend.post_process(one, other, add_special_tokens=True)
        kinds: list[int] = joined.type_ids
        return joined.ids, kinds.index(1) if 1 in kinds else None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD; ids beyond the vocabulary decode to nothing."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        text: str
        (text,) = self._backend.decode_batch([known], skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """One token on its own; special tokens spelt out."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for, a leading space included; empty for an unknown id."""
        return self._known_bytes(token_id)

    def _find_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return b"" if token is None else self._bytes_of(token)

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two texts is kept: all of the shorter one, as far as half of the room."""
    kept = min(second, max(room // 2, room - first))
    return min(first, room - kept), kept


def open_tokenizer(spec: TokenizerSpec) -> FastTokenizer:
    """:raises CheckpointError: the tokenizer's files are missing or corrupt.
    :raises UnsupportedModel: a GGUF file's tokenizer is of a kind that is not built here.
    """
    if spec.files.path.endswith(".gguf"):
        from llmkit_loaders.gguf_file import open_gguf
        from llmkit_loaders.gguf_tokenizer import build

        return FastTokenizer(*build(open_gguf(spec.files.root)))
    return _from_directory(spec.files.root, spec.info.config)


def _from_directory(root: Path, config: Mapping[str, Any]) -> FastTokenizer:
    path = root / "tokenizer.json"
    backend = _load(path)
    stated = read_json(root / "special_tokens_map.json") | read_json(root / "tokenizer_config.json")
    special = {name: text for name in SPECIAL_NAMES if (text := _content(stated.get(name))) is not None}
    _add_missing(backend, stated, special)
    for name in ("bos_token", "eos_token"):
        token_id = config.get(f"{name}_id")
        if name not in special and name not in stated and isinstance(token_id, int):
            token = backend.id_to_token(token_id) if token_id >= 0 else None
            if token is not None:
                special[name] = token
    # Begin and end come from the file's own template: like AutoTokenizer, this does not ask the config's
    # add_bos_token and add_eos_token where there is a tokenizer.json.
    return FastTokenizer(backend, special)


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{path} has {size} bytes; at most {MAX_TOKENIZER_BYTES} are read")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{path} is corrupt, or too new for tokenizers here: {error}") from error


def _add_missing(
    backend: tokenizers.Tokenizer, stated: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Tokens that ``tokenizer_config.json`` knows and ``tokenizer.json`` does not."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = stated.get("added_tokens_decoder")
    entries = sorted(listed.items(), key=lambda item: int(item[0])) if isinstance(listed, dict) else []
    missing: list[tokenizers.AddedToken] = []
    for _, entry in entries:
        text = _content(entry)
        if text is not None and text not in known:
            known.add(text)
            missing.append(_added_token(text, entry, special=text in special.values()))
    for name, text in special.items():
        if text not in known:
            known.add(text)
            missing.append(_added_token(text, stated[name], special=True))
    if missing:
        backend.add_tokens(missing)


def _added_token(text: str, entry: Any, *, special: bool) -> tokenizers.AddedToken:
    flags = entry if isinstance(entry, dict) else {}
    special = special or bool(flags.get("special", False))
    return tokenizers.AddedToken(
        text,
        single_word=bool(flags.get("single_word", False)),
        lstrip=bool(flags.get("lstrip", False)),
        rstrip=bool(flags.get("rstrip", False)),
        normalized=bool(flags.get("normalized", not special)),
        special=special,
    )


def _content(entry: Any) -> str | None:
    """A token is written as its text, or as an object with its text in ``content``."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _decoder_of(backend: tokenizers.Tokenizer) -> dict[str, Any] | None:
    decoder = backend.decoder
    return None if decoder is None else json.loads(decoder.__getstate__())
