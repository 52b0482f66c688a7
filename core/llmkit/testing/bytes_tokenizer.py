"""A model directory that needs no download: a byte tokenizer, a chat template and a tiny config.

Token id ``b`` stands for byte ``b``; 256 is ``<|im_end|>`` (end of sequence), 257 ``<|im_start|>``, 258
``<s>`` (begin of sequence, added only where asked for). There are no weights: serve it with an executor
that needs none and ``--load-format dummy``, which reads the config alone. The other loaders refuse a
directory without weight files, so that a forgotten download is noticed at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EOS_ID = 256
START_ID = 257
BOS_ID = 258
VOCAB_SIZE = 259

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPECIAL = {EOS_ID: "<|im_end|>", START_ID: "<|im_start|>", BOS_ID: "<s>"}


def write(
    directory: Path | str,
    *,
    chat_template: str | None = CHATML,
    add_bos: bool = False,
    max_position_embeddings: int = 4096,
    special: Sequence[str] = (),
) -> Path:
    """Fill ``directory`` (made if need be) with tokenizer and config files; gives it back.

    ``chat_template=None`` leaves the model without one; ``add_bos`` makes plain prompts begin with 258;
    ``special`` are further special tokens, from 259 on.
    """
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    names = _SPECIAL | dict(enumerate(special, VOCAB_SIZE))
    _dump(root / "tokenizer.json", _tokenizer(add_bos, names))
    tokenizer_config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[BOS_ID],
        "eos_token": _SPECIAL[EOS_ID],
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    _dump(root / "tokenizer_config.json", tokenizer_config)
    _dump(root / "config.json", _config(max_position_embeddings, len(special)))
    _dump(root / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    return root


def byte_alphabet() -> dict[int, str]:
    """GPT-2's spelling of the 256 bytes as printable characters, as byte-level vocabularies hold them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in spelling)
    return spelling | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def _tokenizer(add_bos: bool, names: dict[int, str]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in sorted(names.items())],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "post_processor": _begin() if add_bos else None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "vocab": {text: byte for byte, text in sorted(byte_alphabet().items())}
            | {text: i for i, text in names.items()},
            "merges": [],
        },
    }


def _begin() -> dict[str, Any]:
    token = _SPECIAL[BOS_ID]
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {token: {"id": token, "ids": [BOS_ID], "tokens": [token]}},
    }


def _config(max_position_embeddings: int, more_tokens: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE + more_tokens,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
