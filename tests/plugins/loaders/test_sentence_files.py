"""What sentence-transformers' files say, and texts joined as pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from llmkit.contracts import SourceRequest
from llmkit.errors import CheckpointError, UnsupportedModel
from llmkit_loaders.fast_tokenizer import FastTokenizer
from llmkit_loaders.sentence_files import read_pooling
from llmkit_loaders.sources.hub import wanted_files

_PREFIX = "sentence_transformers.models."


def write(root: Path, modules: list[tuple[str, str]], pooling: dict[str, Any], **files: Any) -> Path:
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": _PREFIX + kind}
        for index, (kind, path) in enumerate(modules)
    ]
    (root / "modules.json").write_text(json.dumps(entries))
    for name, content in {"1_Pooling/config": pooling, **files}.items():
        path = root / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return root


PLAIN = [("Transformer", ""), ("Pooling", "1_Pooling")]


def test_all_that_is_read(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        [*PLAIN, ("Dense", "2_Dense"), ("Normalize", "3_Normalize")],
        {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": False},
        **{
            "sentence_bert_config": {"max_seq_length": 77, "do_lower_case": True},
            "config_sentence_transformers": {
                "prompts": {"query": "find: "},
                "default_prompt_name": "query",
                "similarity_fn_name": "dot",
            },
            "2_Dense/config": {"in_features": 8, "out_features": 5},
        },
    )
    spec = read_pooling(root, {"matryoshka_dimensions": [2, 4]})
    assert spec is not None
    assert (spec.type, spec.normalize, spec.dense, spec.size) == ("mean", True, ("2_Dense",), 5)
    assert (spec.max_length, spec.lower_case, spec.similarity) == (77, True, "dot")
    assert (spec.prompts, spec.default_prompt, spec.prompt_counts) == ({"query": "find: "}, "query", False)
    assert (spec.matryoshka, spec.dimensions) == (True, (2, 4))


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_each_way_of_naming_a_mode(tmp_path: Path, pooling: dict[str, Any], kind: str) -> None:
    spec = read_pooling(write(tmp_path, PLAIN, pooling), {})
    assert spec is not None
    assert (spec.type, spec.normalize) == (kind, False)


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (PLAIN, {"pooling_mode_max_tokens": True}, "pooling modes pooling_mode_max_tokens"),
        (PLAIN, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pooling modes"),
        ([*PLAIN, ("LSTM", "2_LSTM")], {"pooling_mode": "cls"}, "its modules are"),
        ([*PLAIN, ("Normalize", "2_N"), ("Dense", "3_D")], {"pooling_mode": "cls"}, "behind Normalize"),
    ],
)
def test_what_is_not_known_is_refused(
    tmp_path: Path, modules: list[tuple[str, str]], pooling: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_pooling(write(tmp_path, modules, pooling), {})


def test_no_folder_lies_outside(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="outside of its own"):
        read_pooling(write(tmp_path, [PLAIN[0], ("Pooling", "../1_Pooling")], {"pooling_mode": "cls"}), {})
    assert read_pooling(tmp_path / "nothing", {}) is None


def test_the_hub_gives_the_modules_files() -> None:
    names = ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "onnx/model.onnx"]
    names += ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "openvino/config.json"]
    wanted = wanted_files(names, None, SourceRequest("org/repo"))
    assert set(wanted) == {*names[:4], "2_Dense/model.safetensors"}


def test_pairs_are_joined_and_the_longer_text_is_cut() -> None:
    vocabulary = {token: index for index, token in enumerate(["[CLS]", "[SEP]", "a", "b"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    tokenizer = FastTokenizer(backend, {})
    assert tokenizer.encode_pair("a a", "b") == ([0, 2, 2, 1, 3, 1], 4)
    assert tokenizer.encode_pair("a a", "b " * 9, 8) == ([0, 2, 2, 1, 3, 3, 3, 1], 4)
    assert tokenizer.encode_pair("a " * 9, "b", 8) == ([0, 2, 2, 2, 2, 1, 3, 1], 6)
    assert tokenizer.encode_pair("a " * 9, "b " * 9, 7) == ([0, 2, 2, 1, 3, 3, 1], 4)
