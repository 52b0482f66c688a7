"""What the native implementation reads from a config, and what it refuses; torch-free."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from llmkit.contracts import CheckpointInfo, ModelFiles, ModelSpec
from llmkit_models.plugin import refuses_native, refuses_transformers
from llmkit_models.shape import read_shape, unsupported

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


LONGROPE = {"rope_type": "longrope"}


def spec(
    architecture: str = "LlamaForCausalLM", *, changes: dict[str, Any] | None = None, **fields: Any
) -> ModelSpec:
    info = CheckpointInfo(architecture, BASE | (changes or {}))
    values: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_model_len": 128, "layers": (0, 4)}
    return ModelSpec(info, ModelFiles("", "m", "i"), **values | fields)


def test_entry_point_imports_no_torch() -> None:
    code = "import sys, llmkit_models.plugin; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(("architecture", "changes", "windows"), [
    pytest.param("LlamaForCausalLM", {"sliding_window": 4}, [None] * 4, id="llama knows none"),
    pytest.param("MistralForCausalLM", {"sliding_window": 4}, [4] * 4, id="mistral on every layer"),
    pytest.param("MistralForCausalLM", {"sliding_window": None}, [None] * 4, id="mistral without"),
    pytest.param("MistralForCausalLM", {}, [4096] * 4, id="mistral's default"),
    pytest.param("Qwen2ForCausalLM", {"sliding_window": 4, "max_window_layers": 2}, [None] * 4, id="off"),
    pytest.param(
        "Qwen2ForCausalLM", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 3},
        [None, None, None, 4], id="qwen's last layers",
    ),
    pytest.param(
        "Qwen3ForCausalLM",
        {"sliding_window": 4, "use_sliding_window": True,
         "layer_types": ["sliding_attention", "full_attention"] * 2},
        [4, None, 4, None], id="layer types decide",
    ),
    pytest.param(
        "SmolLM3ForCausalLM", {"sliding_window": 4, "use_sliding_window": True}, [None, None, None, 4],
        id="smollm3 where nothing rotates",
    ),
])  # fmt: skip
def test_windows(architecture: str, changes: dict[str, Any], windows: list[int | None]) -> None:
    assert list(read_shape(architecture, BASE | changes).windows) == windows


def test_old_and_new_spelling_of_rope_mean_the_same() -> None:
    scaling = {"factor": 2.0}
    old = BASE | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", **scaling}}
    new = BASE | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", **scaling}}
    for config in (old, new):
        shape = read_shape("LlamaForCausalLM", config)
        assert (shape.rope_base, shape.rope_type, shape.rope_parameters["factor"]) == (5e5, "linear", 2.0)


def test_defaults_of_the_families() -> None:
    llama, qwen2 = read_shape("LlamaForCausalLM", BASE), read_shape("Qwen2ForCausalLM", BASE)
    qwen3, smol = read_shape("Qwen3ForCausalLM", BASE), read_shape("SmolLM3ForCausalLM", BASE)
    assert (llama.qkv_bias, llama.output_bias, llama.head_size, llama.tied) == (False, False, 8, False)
    assert (qwen2.qkv_bias, qwen2.output_bias) == (True, False)
    assert (qwen3.qk_norm, qwen3.head_size) == (True, 128)
    assert (smol.ropes, smol.rope_base, smol.tied) == ((True, True, True, False), 2e6, True)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it knows silu"),
    ({"quantization_config": {"quant_method": "gptq"}}, "weights quantized by 'gptq'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type is 'dynamic'"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "a different one for each kind"),
    ({"layer_types": ["chunked_attention"] * 4}, "layer_types has chunked_attention"),
    ({"partial_rotary_factor": 0.5}, "only a part of each head rotates"),
    ({"num_key_value_heads": 3}, "no multiple"),
    ({"vocab_size": None}, "config lacks vocab_size"),
    ({"quantization_config": "gptq"}, "quantization_config is 'gptq', not an object"),
    ({"rope_scaling": "yarn"}, "rope entry is 'yarn', not an object"),
    ({"rope_scaling": {"type": "linear"}}, "'linear' without a number for factor"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "'linear' without a number for factor"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "'linear' without a number for factor"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}},
     "for low_freq_factor, original_max_position_embeddings"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "for factor, original_max_position_embeddings"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": "x"}, "max_position_embeddings": 64},
     "for beta_fast"),
    ({"rope_theta": "1e4"}, "for rope_theta"),
])  # fmt: skip
def test_native_refuses_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(refuses_native(spec(changes=changes)))


def test_native_names_what_it_knows() -> None:
    assert unsupported("LlamaForCausalLM", BASE) is None
    assert "LlamaForCausalLM, MistralForCausalLM" in str(refuses_native(spec("BertModel")))
    assert "one rank" in str(refuses_native(spec(world=2)))


@pytest.mark.parametrize(("changes", "fields", "reason"), [
    ({}, {}, None),
    ({}, {"world": 2}, "one rank"),
    ({}, {"deterministic": True}, "round differently"),
    ({"quantization_config": {"quant_method": "awq"}}, {}, "'awq'"),
    ({"auto_map": {"AutoModel": "x"}}, {}, "--trust-remote-code"),
    ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 128}, {}, None),
    ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 64}, {}, "--max-model-len 64"),
    ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 100}, {}, "--max-model-len 100"),
    ({"rope_scaling": LONGROPE}, {}, "'longrope' needs original_max_position_embeddings"),
    ({"rope_scaling": {"type": "dynamic"}}, {}, "'dynamic' needs max_position_embeddings"),
    ({"rope_parameters": {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default"}},
      "original_max_position_embeddings": 64}, {}, "--max-model-len 64"),
    ({"rope_scaling": "longrope"}, {}, "rope entry is 'longrope', not an object"),
    ({"quantization_config": ["awq"]}, {}, "quantization_config is ['awq'], not an object"),
])  # fmt: skip
def test_transformers_refuses_with_a_reason(
    changes: dict[str, Any], fields: dict[str, Any], reason: str | None
) -> None:
    refusal = refuses_transformers(spec(changes=changes, **fields))
    assert refusal is None if reason is None else reason in str(refusal)
