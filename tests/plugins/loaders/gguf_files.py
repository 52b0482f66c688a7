"""Small GGUF files for tests: a tiny transformers model written as llama.cpp's converter writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

F32 = gguf.GGMLQuantizationType.F32
TINY = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_INNER = INNER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tiny_model(name: str, **config: Any) -> torch.nn.Module:
    """A transformers model by its config's class name, with seeded weights (norms too)."""
    import transformers

    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = getattr(transformers, name.replace("Config", "ForCausalLM").replace("TextFor", "For"))(
        cls(**TINY | config)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def checkpoint(model: Any) -> dict[str, torch.Tensor]:
    """Its parameters as a checkpoint holds them: a tied head is not there."""
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def write_model(
    path: Path,
    arch: str,
    model: Any,
    extra: Mapping[str, Any] | None = None,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """``kinds`` packs matrices whose GGUF name ends so; ``tensors`` are added as they are."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    base = {
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": config.rope_parameters.get("rope_theta", 10000.0)
        if "rope_theta" in config.rope_parameters
        else config.rope_parameters["full_attention"]["rope_theta"],
    }
    add_metadata(writer, base | vocabulary(config.vocab_size) | dict(extra or {}))
    for name, array in converted(arch, model).items():
        kind = next((k for end, k in (kinds or {}).items() if name.endswith(end)), F32)
        if kind == F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    return finish(writer, path)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def vocabulary(size: int) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(size - 3))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-i) for i in range(size)],
        "tokenizer.ggml.token_type": [2, 3, 3, *([1] * (size - 3))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def converted(arch: str, model: Any) -> dict[str, np.ndarray]:
    """Names and values as llama.cpp's converter writes them."""
    config = model.config
    result: dict[str, np.ndarray] = {}
    for name, tensor in checkpoint(model).items():
        stem, suffix = name.rsplit(".", 1)
        array = tensor.float().numpy()
        if arch.startswith("gemma") and stem.endswith("norm"):
            array = array + 1.0
        if stem in OUTER:
            result[f"{OUTER[stem]}.{suffix}"] = array
            continue
        _, _, layer, inner = stem.split(".", 3)
        names = GEMMA_INNER if arch in ("gemma2", "gemma3") else INNER
        if arch == "llama" and inner in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if "q_proj" in inner else config.num_key_value_heads
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        result[f"blk.{layer}.{names[inner]}.{suffix}"] = np.ascontiguousarray(array)
    return result
