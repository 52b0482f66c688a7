"""Two tiny random models whose outputs hardly repeat themselves, with a tokenizer of syllables."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from llmkit.testing import bytes_tokenizer, tiny

VOCAB_SIZE = 1280
"""The bytes, three special tokens and syllables: large enough that a flat choice seldom comes twice."""
MAX_MODEL_LEN = 320
ARCHITECTURES = {"full": "LlamaForCausalLM", "windowed": "Qwen2ForCausalLM"}
"""``windowed`` has a layer that sees all and two that see a window: two groups of KV blocks."""
_WINDOW = {"sliding_window": 40}


def write(directory: Path, kind: str) -> Path:
    """A checkpoint with a tokenizer; the same for the same ``kind``."""
    bytes_tokenizer.write(directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for syllable in itertools.islice(_syllables(), VOCAB_SIZE - len(vocabulary)):
        vocabulary[syllable] = len(vocabulary)
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return tiny.build(
        directory,
        ARCHITECTURES[kind],
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=2 * MAX_MODEL_LEN,
        bos_token_id=bytes_tokenizer.BOS_ID,
        eos_token_id=bytes_tokenizer.EOS_ID,
        pad_token_id=bytes_tokenizer.EOS_ID,
        **(_WINDOW if kind == "windowed" else {}),
    )


def _syllables() -> itertools.chain[str]:
    """As a byte-level vocabulary spells them: the letter after Z's place stands for a space."""
    space = bytes_tokenizer.byte_alphabet()[ord(" ")]
    triples = itertools.product("bcdfghjklmnprstvwz" + space, "aeiou", "lnrstdmgkpv" + space)
    return itertools.chain(map("".join, triples))
