"""A tokenizer from GGUF metadata, as the model's own ``tokenizer.json`` would have built it.

Two kinds: byte-level BPE (``gpt2``), whose ``tokenizer.ggml.pre`` names the way text is split before
merging, and sentencepiece BPE (``llama``), whose merges follow from the vocabulary's scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import listing
from llmkit_loaders.gguf_file import GgufFile, Strings
from llmkit_loaders.token_bytes import BYTE_TO_CHAR, CHAR_TO_BYTE

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_SPACE = "▁"


def build(gguf: GgufFile) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The tokenizer and its special tokens by name (``bos_token``).

    :raises CheckpointError: the metadata lacks the vocabulary or contradicts itself.
    :raises UnsupportedModel: a kind of tokenizer, or a way of splitting, that is not known here.
    """
    vocabulary = _Vocabulary.read(gguf)
    kind = gguf.metadata.get("tokenizer.ggml.model")
    builders: dict[Any, Callable[[_Vocabulary], tokenizers.Tokenizer]] = {
        "gpt2": _byte_level,
        "llama": _sentencepiece,
    }
    if kind not in builders:
        raise UnsupportedModel(
            f"{gguf.path}: a tokenizer of kind {kind!r} is not built from GGUF metadata; known: "
            f"{listing(builders)}. Give one in the Hugging Face layout with --tokenizer"
        )
    backend = builders[kind](vocabulary)
    backend.add_special_tokens(vocabulary.added(_UNKNOWN, _CONTROL, special=True))
    backend.add_tokens(vocabulary.added(_USER_DEFINED, special=False))
    special = _special_tokens(gguf, vocabulary.tokens)
    # llama.cpp adds BOS to a sentencepiece or Llama 3 vocabulary whose file does not say otherwise.
    adds_bos = kind == "llama" or vocabulary.pre in _LLAMA3_NAMES
    _set_begin_and_end(
        backend,
        special.get("bos_token") if gguf.metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None,
        special.get("eos_token") if gguf.metadata.get("tokenizer.ggml.add_eos_token", False) else None,
    )
    return backend, special


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What the metadata says of the tokens."""

    gguf: GgufFile
    tokens: list[str]
    types: list[int]
    pre: str

    @staticmethod
    def read(gguf: GgufFile) -> _Vocabulary:
        tokens = gguf.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, Strings) or not tokens.count:
            raise CheckpointError(f"{gguf.path}: the metadata has no tokenizer.ggml.tokens")
        types = gguf.metadata.get("tokenizer.ggml.token_type")
        if types is None:
            types = np.full(tokens.count, _NORMAL)
        if not isinstance(types, np.ndarray) or len(types) != tokens.count:
            raise CheckpointError(f"{gguf.path}: tokenizer.ggml.token_type does not fit the tokens")
        pre = gguf.metadata.get("tokenizer.ggml.pre", "default")
        return _Vocabulary(gguf, tokens.decode(), types.tolist(), str(pre))

    def added(self, *kinds: int, special: bool) -> list[AddedToken]:
        return [
            AddedToken(token, normalized=False, special=special)
            for token, type in zip(self.tokens, self.types, strict=True)
            if type in kinds and token
        ]

    def merges(self) -> list[tuple[str, str]] | None:
        merges = self.gguf.metadata.get("tokenizer.ggml.merges")
        if not isinstance(merges, Strings):
            return None
        pairs: list[tuple[str, str]] = []
        for merge in merges.decode():
            left, gap, right = merge.partition(" ")
            if not gap:
                raise CheckpointError(f"{self.gguf.path}: tokenizer.ggml.merges holds {merge!r}, no pair")
            pairs.append((left, right))
        return pairs


def _special_tokens(gguf: GgufFile, tokens: list[str]) -> dict[str, str]:
    special: dict[str, str] = {}
    for name, key in _NAMES.items():
        token_id = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            raise CheckpointError(
                f"{gguf.path}: tokenizer.ggml.{key}_token_id is {token_id!r}, not from 0 to {len(tokens) - 1}"
            )
        special[name] = tokens[token_id]
    return special


def _set_begin_and_end(backend: tokenizers.Tokenizer, begin: str | None, end: str | None) -> None:
    """Make ``encode`` put these special tokens around a text; None adds nothing on that side."""
    tokens = [
        (token, backend.token_to_id(token)) for token in dict.fromkeys((begin, end)) if token is not None
    ]
    # As a list, since a token's own text may hold what a template string would take for syntax.
    template = [begin] if begin is not None else []
    template += ["$A"]
    template += [end] if end is not None else []
    backend.post_processor = TemplateProcessing(
        single=template, pair=[*template, "$B"], special_tokens=tokens
    )


# ---- byte-level BPE ----

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED = (
    r"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{0}"
    r"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{0}"
)
_TEKKEN_SPLIT = _CASED.format("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O_SPLIT = (
    _CASED.format("(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3_SPLIT = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Splitting:
    """How one family of vocabularies was made: text is cut by these in turn, then bytes are spelt."""

    splits: tuple[str, ...] = ()
    """Empty means GPT-2's own regex."""
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is a token stays one, whatever the merges say."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.splits))
        return pre_tokenizers.Sequence(steps)


_GPT2 = _Splitting()
_DIGITS = _Splitting(single_digits=True)
_LLAMA3 = _Splitting((_LLAMA3_SPLIT,), ignore_merges=True)
_QWEN2 = _Splitting((_QWEN2_SPLIT,), nfc=True)
_GPT4O = _Splitting((_GPT4O_SPLIT,))
_LLAMA3_NAMES = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
_SPLITTINGS: Mapping[str, _Splitting] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), _GPT2),
    # Their tokenizer.json cut every digit off first, so "  5" is two spaces and a digit.
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(_LLAMA3_NAMES, _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Splitting((_LLAMA3_SPLIT,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "qwen35": _Splitting((_QWEN35_SPLIT,), nfc=True),
    "tekken": _Splitting((_TEKKEN_SPLIT,), ignore_merges=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "deepseek-v3": _Splitting((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_SPLIT)),
    "deepseek-coder": _Splitting(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    ),
}


def _byte_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    splitting = _SPLITTINGS.get(vocabulary.pre)
    if splitting is None:
        raise UnsupportedModel(
            f"{vocabulary.gguf.path}: tokenizer.ggml.pre is {vocabulary.pre!r}, and how it splits text is "
            f"not known here; known: {listing(_SPLITTINGS)}. Give a tokenizer in the Hugging Face layout "
            "with --tokenizer"
        )
    merges = vocabulary.merges()
    if merges is None:
        raise CheckpointError(f"{vocabulary.gguf.path}: the metadata has no tokenizer.ggml.merges")
    vocab = {
        _spelt(token) if type == _NORMAL else token: i
        for i, (token, type) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    }
    backend = _merging(vocabulary, vocab, merges, ignore_merges=splitting.ignore_merges)
    if splitting.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitting.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _merging(
    vocabulary: _Vocabulary, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{vocabulary.gguf.path}: its tokenizer is corrupt: {error}") from error


def _spelt(token: str) -> str:
    """In GPT-2's alphabet; some files hold a few tokens as plain text."""
    if all(char in CHAR_TO_BYTE for char in token):
        return token
    return "".join(BYTE_TO_CHAR[byte] for byte in token.encode())


# ---- sentencepiece BPE ----


def _sentencepiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    gguf = vocabulary.gguf
    is_gemma = gguf.architecture.startswith("gemma")
    tokens = vocabulary.tokens
    if is_gemma:
        # Runs of spaces are stored as such, and looked up as the sign for a space.
        tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    merges = vocabulary.merges()
    if merges is None:
        merges = _implied_merges(tokens, _ranks(vocabulary, by_position=is_gemma))
    unknown = gguf.metadata.get("tokenizer.ggml.unknown_token_id")
    backend = _merging(
        vocabulary,
        {token: i for i, token in enumerate(tokens)},
        merges,
        fuse_unk=True,
        byte_fallback=True,
        unk_token=tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
    )
    has_prefix = bool(gguf.metadata.get("tokenizer.ggml.add_space_prefix", not is_gemma))
    _set_spaces(backend, gguf.architecture, has_prefix)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _set_spaces(backend: tokenizers.Tokenizer, architecture: str, has_prefix: bool) -> None:
    """Spaces become ``▁``; most vocabularies want one before the text, too."""
    spaces = normalizers.Replace(" ", _SPACE)
    if not has_prefix:
        backend.normalizer = spaces
    elif architecture == "phi3":
        # Its tokenizer.json puts the prefix before text that begins with a space, too.
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first", split=False
        )


def _ranks(vocabulary: _Vocabulary, *, by_position: bool) -> list[float]:
    """Which token is merged first: the best score, or for Gemma the earliest place."""
    if by_position:
        return [float(-i) for i in range(len(vocabulary.tokens))]
    scores = vocabulary.gguf.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"{vocabulary.gguf.path}: tokenizer.ggml.scores is missing or does not fit the tokens"
        )
    ranks: list[float] = scores.tolist()
    return ranks


def _implied_merges(tokens: list[str], ranks: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, in the order in which sentencepiece would."""
    ids = {token: i for i, token in enumerate(tokens)}
    found: list[tuple[float, str, str]] = []
    for token, i in ids.items():
        ways = [
            (token[:cut], token[cut:])
            for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids
        ]
        ways.sort(key=lambda way: (ids[way[0]], ids[way[1]]))
        found += [(ranks[i], left, right) for left, right in ways]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]
