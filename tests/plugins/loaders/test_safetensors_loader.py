from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import LoaderSpec, ModelFiles
from llmkit_loaders.safetensors_loader import SafetensorsLoader

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rope_scaling": {"factor": 2.0, "type": "x"},
}
WEIGHTS = {
    "a.weight": torch.arange(24, dtype=torch.float32).reshape(4, 6),
    "b.weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "c.weight": torch.arange(5, dtype=torch.float16),
    "scale": torch.tensor(2.5),
}


def loader(root: Path, **overrides: object) -> SafetensorsLoader:
    return SafetensorsLoader(LoaderSpec(ModelFiles(str(root), "m", "test"), hf_overrides=overrides))


@pytest.fixture
def single(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    names = {
        f"model-0000{i}-of-00002.safetensors": part
        for i, part in ((1, ("a.weight", "scale")), (2, ("b.weight", "c.weight")))
    }
    for file, part in names.items():
        save_file({name: WEIGHTS[name] for name in part}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in names.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_every_weight_is_read(layout: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(layout)
    found = {ref.name: ref for ref in loader(root).weights()}
    assert found.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert found[name].shape == tuple(tensor.shape)
        assert f"torch.{found[name].encoding}" == str(tensor.dtype)
        assert torch.equal(found[name].dense(tensor.dtype), tensor)
        assert torch.equal(found[name].dense(torch.float32), tensor.float())


def test_a_slice_of_a_slice_equals_the_slice(single: Path) -> None:
    ref = next(ref for ref in loader(single).weights() if ref.name == "a.weight")
    part = ref.narrow(1, 1, 4).narrow(0, 1, 3).narrow(1, 1, 2)
    assert part.shape == (3, 2)
    assert torch.equal(part.dense(torch.float32), WEIGHTS["a.weight"][1:4, 2:4])
    with pytest.raises(IndexError, match=r"a\.weight"):
        ref.narrow(0, 2, 3)


def test_nothing_is_copied_where_nothing_changes(single: Path) -> None:
    ref = next(ref for ref in loader(single).weights() if ref.name == "a.weight")
    assert ref.dense(torch.float32).data_ptr() == ref.dense(torch.float32).data_ptr()
    before = (single / "model.safetensors").read_bytes()
    ref.dense(torch.float32).zero_()
    assert (single / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("keep", [0, 4, 30, -1, -40])
def test_a_truncated_file_is_named_before_any_weight_is_read(single: Path, keep: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        loader(single).info()


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        loader(sharded).info()


def test_an_index_that_names_a_missing_weight_is_refused(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["d.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'d\.weight' is missing"):
        list(loader(sharded).weights())


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_an_index_cannot_name_a_file_elsewhere(sharded: Path, name: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="no file of this directory"):
        loader(sharded).info()


def test_the_json_files_are_read_and_overrides_merge(single: Path) -> None:
    (single / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (single / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
        )
    )
    info = loader(single, rope_scaling={"factor": 4.0}).info()
    assert info.architecture == "LlamaForCausalLM"
    assert info.config["rope_scaling"] == {"factor": 4.0, "type": "x"}
    assert info.generation_config == {"eos_token_id": [1, 2]}
    assert info.chat_template == "d"
    (single / "chat_template.jinja").write_text("from the file")
    assert loader(single).info().chat_template == "from the file"


def test_a_quantized_checkpoint_says_so(single: Path) -> None:
    info = loader(single, quantization_config={"quant_method": "gptq"}).info()
    assert info.encoding == "gptq"


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_corrupt_config_is_named(single: Path, text: str) -> None:
    (single / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json is corrupt"):
        loader(single).info()


def test_a_config_without_architecture_says_what_to_do(single: Path) -> None:
    (single / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="--hf-overrides"):
        loader(single).info()
