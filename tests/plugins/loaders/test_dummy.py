from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llmkit import UnsupportedModel
from llmkit.contracts import LoaderSpec, ModelFiles
from llmkit.testing import bytes_tokenizer
from llmkit_loaders.dummy import DummyLoader
from llmkit_loaders.safetensors_loader import SafetensorsLoader
from tests.plugins.loaders.gguf_files import tiny_model, write_model


def loader(path: Path, seed: int = 0, **overrides: object) -> DummyLoader:
    return DummyLoader(LoaderSpec(ModelFiles(str(path), "m", "test"), hf_overrides=overrides, seed=seed))


def test_names_and_shapes_are_a_checkpoint_s(tmp_path: Path) -> None:
    tiny_model("LlamaConfig", tie_word_embeddings=True).save_pretrained(tmp_path)
    spec = LoaderSpec(ModelFiles(str(tmp_path), "m", "test"))
    real = {ref.name: ref.shape for ref in SafetensorsLoader(spec).weights()}
    (tmp_path / "model.safetensors").unlink()
    assert {ref.name: ref.shape for ref in loader(tmp_path).weights()} == real


def test_values_depend_on_seed_and_name_alone(tmp_path: Path) -> None:
    root = bytes_tokenizer.write(tmp_path)

    def values(seed: int) -> dict[str, torch.Tensor]:
        return {ref.name: ref.dense(torch.float32) for ref in loader(root, seed).weights()}

    one, same, other = values(1), values(1), values(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    queries = [name for name in one if "q_proj" in name]
    assert not torch.equal(one[queries[0]], one[queries[1]])
    assert not torch.equal(one[queries[0]], other[queries[0]])
    assert one["model.norm.weight"].eq(1).all()


def test_slices_are_slices_of_the_whole(tmp_path: Path) -> None:
    root = bytes_tokenizer.write(tmp_path)
    for ref in loader(root).weights():
        whole = ref.dense(torch.float32)
        assert whole.shape == ref.shape
        for dim in range(len(ref.shape)):
            part = ref.narrow(dim, 3, 5)
            assert torch.equal(part.dense(torch.float32), whole.narrow(dim, 3, 5))


def test_large_weights_repeat_and_keep_their_shape(tmp_path: Path) -> None:
    root = bytes_tokenizer.write(tmp_path)
    ref = next(iter(loader(root, vocab_size=70_000).weights()))
    assert ref.shape == (70_000, 32)
    assert ref.dense(torch.bfloat16).std().item() == pytest.approx(0.02, rel=0.05)


def test_a_gguf_file_gives_the_config_only(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen2", tiny_model("Qwen2Config"))
    dummy = loader(path)
    assert dummy.info().encoding == "dense"
    assert {ref.name for ref in dummy.weights()} >= {"model.embed_tokens.weight", "lm_head.weight"}


def test_an_architecture_without_shapes_is_named(tmp_path: Path) -> None:
    root = bytes_tokenizer.write(tmp_path)
    with pytest.raises(UnsupportedModel, match="'NoSuchModel'"):
        list(loader(root, architectures=["NoSuchModel"]).weights())
