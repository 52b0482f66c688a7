from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import LoaderSpec, ModelFiles, WeightRef
from llmkit_loaders.gguf_loader import GgufLoader
from tests.plugins.loaders.gguf_files import (
    add_metadata,
    checkpoint,
    finish,
    tiny_model,
    vocabulary,
    write_model,
)

GEMMA2 = {
    "gemma2.attention.sliding_window": 16,
    "gemma2.attn_logit_softcapping": 50.0,
    "gemma2.final_logit_softcapping": 30.0,
}
FAMILIES = [
    pytest.param("llama", "LlamaConfig", {"attention_bias": True}, {}, id="llama with biases"),
    pytest.param("llama", "LlamaConfig", {"tie_word_embeddings": True}, {}, id="tied llama"),
    pytest.param("qwen2", "Qwen2Config", {}, {}, id="qwen2"),
    pytest.param("qwen3", "Qwen3Config", {}, {}, id="qwen3"),
    pytest.param("phi3", "Phi3Config", {"pad_token_id": 0}, {"phi3.rope.dimension_count": 16}, id="phi3"),
    pytest.param("gemma", "GemmaConfig", {}, {}, id="gemma"),
    pytest.param(
        "gemma2", "Gemma2Config", {"sliding_window": 16, "query_pre_attn_scalar": 16}, GEMMA2, id="gemma2"
    ),
    pytest.param(
        "gemma3",
        "Gemma3TextConfig",
        {"sliding_window": 16, "query_pre_attn_scalar": 16},
        {"gemma3.attention.sliding_window": 16},
        id="gemma3",
    ),
]
STATED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention_bias",
)


def loader(path: Path, **overrides: Any) -> GgufLoader:
    return GgufLoader(LoaderSpec(ModelFiles(str(path), path.stem, "test"), hf_overrides=overrides))


def dense(path: Path) -> dict[str, torch.Tensor]:
    return {ref.name: ref.dense(torch.float32) for ref in loader(path).weights()}


def read_by_transformers(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    found: dict[str, torch.Tensor] = load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )["tensors"]
    return found


@pytest.mark.parametrize(("arch", "config", "options", "extra"), FAMILIES)
def test_weights_come_out_as_they_were_before_conversion(
    tmp_path: Path, arch: str, config: str, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    model = tiny_model(config, **options)
    path = write_model(tmp_path / f"{arch}.gguf", arch, model, extra)
    found, expected = dense(path), checkpoint(model)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=3e-7, msg=name)


@pytest.mark.parametrize(("arch", "config", "options", "extra"), FAMILIES)
def test_the_config_builds_the_same_model(
    tmp_path: Path, arch: str, config: str, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    model = tiny_model(config, **options)
    path = write_model(tmp_path / f"{arch}.gguf", arch, model, extra)
    info = loader(path).info()
    assert info.architecture == type(model).__name__
    stated = dict(info.config)
    rebuilt = transformers.AutoConfig.for_model(stated.pop("model_type"), **stated)
    for name in STATED:
        if hasattr(model.config, name) and name in (*stated, "rope_parameters"):
            assert getattr(rebuilt, name) == getattr(model.config, name), name
    again = type(model)(rebuilt).eval()
    again.load_state_dict(dense(path), strict=False)
    ids = torch.arange(40)[None] % 64
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("arch", "config", "options", "extra"),
    [case for case in FAMILIES if case.values[0] in ("llama", "qwen2", "qwen3", "gemma2", "gemma3")],
)
def test_weights_equal_what_transformers_reads(
    tmp_path: Path, arch: str, config: str, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    # transformers' own reader of GGUF is an oracle that knows nothing of our conversion.
    model = tiny_model(config, **options)
    path = write_model(tmp_path / "m.gguf", arch, model, extra | {"general.name": "tiny"})
    theirs = read_by_transformers(path, model)
    ours = dense(path)
    assert theirs.keys() == ours.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.F16, Type.BF16])
def test_any_slice_of_a_weight_equals_the_slice_of_the_whole(tmp_path: Path, kind: Type) -> None:
    model = tiny_model("LlamaConfig", attention_bias=True)
    kinds = {f"{part}.weight": kind for part in ("attn_q", "attn_k", "ffn_up", "ffn_down", "token_embd")}
    path = write_model(tmp_path / "m.gguf", "llama", model, kinds=kinds)
    for ref in loader(path).weights():
        whole = ref.dense(torch.float32)
        assert whole.shape == ref.shape
        for dim, size in enumerate(ref.shape):
            for start, length in ((0, size), (size // 2, size // 2), (5, 7), (size - 1, 1), (3, 0)):
                part = ref.narrow(dim, start, length)
                expected = whole.narrow(dim, start, length)
                assert part.shape == expected.shape
                assert torch.equal(part.dense(torch.float32), expected), (ref.name, dim, start, length)
        twice = ref.narrow(0, 2, 9)
        assert torch.equal(twice.narrow(0, 1, 3).dense(torch.float32), whole[3:6]), ref.name
        with pytest.raises(IndexError, match="no slice"):
            ref.narrow(0, 1, ref.shape[0])


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in Type
        if kind.name.startswith(("Q", "IQ", "TQ", "MXFP"))
        and kind in gguf.quants._type_traits
        and kind in gguf.GGML_QUANT_SIZES
    ],
    ids=lambda kind: kind.name,
)
def test_every_packed_type_that_gguf_decodes_is_read(tmp_path: Path, kind: Type) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    columns = 2 * block
    packed = np.random.default_rng(0).integers(0, 60, (8, 2 * size), dtype=np.uint8)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    needed = {"block_count": 1, "context_length": 8, "embedding_length": columns, "feed_forward_length": 8}
    needed |= {"attention.head_count": 2}
    add_metadata(writer, {f"llama.{key}": value for key, value in needed.items()})
    add_metadata(writer, {"llama.attention.layer_norm_rms_epsilon": 1e-5})
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    finish(writer, path)
    assert loader(path).info().encoding == f"gguf:{kind.name}"
    (ref,) = loader(path).weights()
    assert (ref.encoding, ref.shape) == (f"gguf:{kind.name}", (8, columns))
    expected = gguf.quants.dequantize(packed, kind)
    assert np.array_equal(ref.dense(torch.float32).numpy(), expected, equal_nan=True)
    assert np.array_equal(
        ref.narrow(1, block // 2, block).dense(torch.float32).numpy(),
        expected[:, block // 2 : block // 2 + block],
        equal_nan=True,
    )


def test_plain_weights_are_views_of_the_file(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen2", tiny_model("Qwen2Config"))
    ref = next(ref for ref in loader(path).weights() if ref.name == "model.layers.0.mlp.up_proj.weight")
    assert ref.dense(torch.float32).data_ptr() == ref.dense(torch.float32).data_ptr()
    before = path.read_bytes()
    ref.dense(torch.float32).zero_()
    assert path.read_bytes() == before


def test_experts_are_taken_apart(tmp_path: Path) -> None:
    arch, experts, hidden, width = "qwen3moe", 3, 64, 32
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": hidden,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "expert_count": experts,
        "expert_used_count": 2,
        "expert_feed_forward_length": width,
    }
    add_metadata(writer, {f"{arch}.{key}": value for key, value in numbers.items()})
    add_metadata(writer, {f"{arch}.attention.layer_norm_rms_epsilon": 1e-6} | vocabulary(16))
    writer.add_tensor("token_embd.weight", np.zeros((16, hidden), np.float32))
    gates = np.random.default_rng(0).normal(size=(experts, width, hidden)).astype(np.float32)
    writer.add_tensor("blk.0.ffn_gate_exps.weight", gates)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((experts, hidden), np.float32))
    finish(writer, path)
    found = dense(path)
    assert loader(path).info().architecture == "Qwen3MoeForCausalLM"
    assert found["model.layers.0.mlp.gate.weight"].shape == (experts, hidden)
    for i in range(experts):
        name = f"model.layers.0.mlp.experts.{i}.gate_proj.weight"
        assert np.array_equal(found[name].numpy(), gates[i])


def test_an_architecture_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    finish(gguf.GGUFWriter(path, "mamba"), path)
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*Known: .*gemma2.*llama.*qwen3"):
        loader(path).info()


def test_a_tensor_that_does_not_belong_is_named(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "m.gguf",
        "qwen2",
        tiny_model("Qwen2Config"),
        tensors={"blk.0.ssm_a.weight": np.zeros(4, np.float32)},
    )
    with pytest.raises(CheckpointError, match=r"blk\.0\.ssm_a\.weight"):
        dense(path)


def test_llama3_rope_scaling_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("LlamaConfig", head_dim=128, rope_parameters=scaling | {"rope_theta": 500000.0})
    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    divisors = (plain / model.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)
    path = write_model(tmp_path / "m.gguf", "llama", model, tensors={"rope_freqs.weight": divisors})
    assert loader(path).info().config["rope_scaling"] == scaling
    assert "rope_freqs.weight" not in dense(path)
    odd = write_model(tmp_path / "odd.gguf", "llama", model, tensors={"rope_freqs.weight": divisors * 1.5})
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        loader(odd).info()


def test_yarn_and_linear_rope_scaling_are_stated(tmp_path: Path) -> None:
    model = tiny_model("Qwen2Config")
    yarn = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 32,
    }
    path = write_model(tmp_path / "yarn.gguf", "qwen2", model, yarn)
    assert loader(path).info().config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    other = write_model(tmp_path / "other.gguf", "qwen2", model, yarn | {"qwen2.rope.scaling.type": "warp"})
    with pytest.raises(UnsupportedModel, match="warp"):
        loader(other).info()


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    finish(writer, path)
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count"):
        loader(path).info()


def test_turn_ends_that_the_template_writes_are_ends_of_sequence(tmp_path: Path) -> None:
    words = vocabulary(64)
    words["tokenizer.ggml.tokens"][5:7] = ["<end_of_turn>", "<|im_end|>"]
    words["tokenizer.ggml.token_type"][5:7] = [3, 3]
    words["tokenizer.chat_template"] = "{{ messages[0].content }}<end_of_turn>"
    path = write_model(tmp_path / "m.gguf", "qwen2", tiny_model("Qwen2Config"), words)
    info = loader(path).info()
    assert info.generation_config["eos_token_id"] == [2, 5]
    assert info.chat_template == words["tokenizer.chat_template"]


def test_overrides_lie_over_the_config(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen2", tiny_model("Qwen2Config"))
    config = loader(path, max_position_embeddings=64, extra={"a": 1}).info().config
    assert config["max_position_embeddings"] == 64
    assert config["extra"] == {"a": 1}
    assert config["hidden_size"] == 64


@pytest.mark.model
def test_the_real_model_is_described(smollm2: ModelFiles) -> None:
    info = GgufLoader(LoaderSpec(smollm2)).info()
    assert info.architecture == "LlamaForCausalLM"
    assert info.encoding == "gguf:Q4_1"
    assert info.config["rms_norm_eps"] == 1e-5
    assert (info.config["hidden_size"], info.config["num_hidden_layers"]) == (576, 30)
    assert info.config["tie_word_embeddings"] is True
    assert info.generation_config["eos_token_id"] == [2]
    refs: list[WeightRef] = list(GgufLoader(LoaderSpec(smollm2)).weights())
    assert sum(np.prod(ref.shape) for ref in refs) == 134_515_008


@pytest.mark.model
@pytest.mark.full
def test_the_real_model_s_weights_equal_what_transformers_reads(smollm2: ModelFiles) -> None:
    stated = dict(GgufLoader(LoaderSpec(smollm2)).info().config)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.AutoConfig.for_model(stated.pop("model_type"), **stated)
        )
    theirs = read_by_transformers(smollm2.root, model)
    for ref in GgufLoader(LoaderSpec(smollm2)).weights():
        assert torch.equal(ref.dense(torch.float32), theirs[ref.name]), ref.name
