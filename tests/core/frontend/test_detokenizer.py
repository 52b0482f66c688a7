"""Detokenizer: pieces joined equal the full decode in the context of the prompt, for any tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.frontend.detokenizer import Detokenizer
from tests.core.frontend.toy_tokenizers import Bytes, byte_level, metaspace

TEXTS = st.text(
    st.one_of(
        st.sampled_from(" ščí你好😀👩‍🚀\n\t\u200d\ufffdéabcdefgh.!"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=24,
)
TOKENIZERS = [
    pytest.param(byte_level, id="byte-level"),
    pytest.param(metaspace, id="metaspace"),
    pytest.param(Bytes, id="bytes"),
]


def pieces(tokenizer, prompt_ids, ids, **options):
    detokenizer = Detokenizer(tokenizer, prompt_ids, **options)
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.finish()]


def in_context(tokenizer, prompt_ids, ids, *, skip_special_tokens=True):
    """decode(prompt + output) less decode(prompt), whose last half character may yet become whole."""
    before = tokenizer.decode(prompt_ids, skip_special_tokens=skip_special_tokens)
    both = tokenizer.decode([*prompt_ids, *ids], skip_special_tokens=skip_special_tokens)
    common = next((i for i, (a, b) in enumerate(zip(before, both, strict=False)) if a != b), len(before))
    return both[common:]


def is_text(tokenizer, ids):
    try:
        b"".join(map(tokenizer.token_bytes, ids)).decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("make", TOKENIZERS)
@given(prompt=TEXTS, output=TEXTS, data=st.data())
@settings(max_examples=60)
def test_pieces_equal_the_full_decode(make, prompt, output, data):
    """The output begins anywhere between two characters of a text, also within a word."""
    tokenizer = make()
    ids = tokenizer.encode(prompt + output)
    cut = data.draw(st.sampled_from([i for i in range(len(ids) + 1) if is_text(tokenizer, ids[:i])]))
    got = pieces(tokenizer, ids[:cut], ids[cut:])
    assert "".join(got) == in_context(tokenizer, ids[:cut], ids[cut:])


@pytest.mark.parametrize("make", [TOKENIZERS[0], TOKENIZERS[2]])
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=100)
def test_ids_that_are_no_text_decode_as_the_tokenizer_does(make, data, skip):
    """Prompts that end within a character among them."""
    tokenizer = make()
    any_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    prompt_ids, ids = data.draw(any_ids), data.draw(any_ids)
    got = pieces(tokenizer, prompt_ids, ids, skip_special_tokens=skip)
    assert "".join(got) == in_context(tokenizer, prompt_ids, ids, skip_special_tokens=skip)


@pytest.mark.parametrize("make", TOKENIZERS)
@given(output=TEXTS)
@settings(max_examples=60)
def test_never_half_a_character_and_never_more_held_back_than_one(make, output):
    tokenizer = make()
    prompt_ids = tokenizer.encode("x")
    ids = tokenizer.encode("x" + output)[len(prompt_ids) :]
    detokenizer = Detokenizer(tokenizer, prompt_ids)
    shown, raw = "", b""
    for token_id in ids:
        shown += detokenizer.feed(token_id)
        raw += tokenizer.token_bytes(token_id)
        whole = raw.decode(errors="ignore")  # less an unfinished tail
        assert shown == whole


# waybarrios/vllm-mlx#109: characters that span tokens
def test_characters_across_tokens_come_out_whole():
    tokens = [b" \xc5", b"\xa1\xc4", b"\x8d\xc3", b"\xad!"]

    class Pieces(Bytes):
        vocab_size = 4

        def token_bytes(self, token_id):
            return tokens[token_id]

    got = pieces(Pieces(), [0, 1, 2, 3], [0, 1, 2, 3])
    assert "".join(got) == " ščí!"
    assert not any("\ufffd" in piece for piece in got)


# Source: huggingface/transformers#22710 (B077): the space at the start of a piece
def test_leading_spaces_survive_behind_a_prompt():
    tokenizer = metaspace()
    prompt_ids = tokenizer.encode("x")
    hello = tokenizer.encode("the lazy dog")
    space = tokenizer.token_id("▁")
    assert "".join(pieces(tokenizer, prompt_ids, [*hello, space])) == " the lazy dog "


def test_the_first_text_of_all_has_no_space_that_the_tokenizer_adds():
    tokenizer = metaspace()
    ids = tokenizer.encode("the lazy dog")
    assert "".join(pieces(tokenizer, [tokenizer.bos_token_id], ids)) == "the lazy dog"
    shown = pieces(tokenizer, [tokenizer.bos_token_id], ids, skip_special_tokens=False)
    assert "".join(shown) == " the lazy dog"  # "<s>" is visible text, and stands before it


def test_an_unfinished_character_is_flushed_as_a_replacement():
    assert pieces(Bytes(), [65], [66, 0xE2, 0x82]) == ["B", "", "", "\ufffd"]


def test_special_tokens_are_left_out_or_spelt_out():
    ids = [72, 257, 105, 256]
    assert "".join(pieces(Bytes(), [], ids)) == "Hi"
    assert "".join(pieces(Bytes(), [], ids, skip_special_tokens=False)) == "H<s>i</s>"


def test_a_special_token_left_out_does_not_break_a_character():
    assert "".join(pieces(Bytes(), [], [0xE2, 0x82, 257, 0xAC])) == "€"


def test_ids_beyond_the_vocabulary_are_nothing():
    assert "".join(pieces(Bytes(), [70_000, -1], [65, 70_000, -1, 66])) == "AB"


@pytest.mark.parametrize("length", [0, 1, 50_000])
def test_a_token_costs_the_same_behind_any_prompt(length):
    class Counting(Bytes):
        calls = 0

        def token_bytes(self, token_id):
            Counting.calls += 1
            return super().token_bytes(token_id)

        def decode(self, ids, *, skip_special_tokens=False):
            raise AssertionError("decodes more than one token")

    Counting.calls = 0
    pieces(Counting(), [65] * length, [66] * 100)
    assert Counting.calls <= 100 + 3
