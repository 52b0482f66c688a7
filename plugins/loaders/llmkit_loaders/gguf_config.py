"""A Hugging Face config from GGUF metadata: what ``config.json`` would have said."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from llmkit import CheckpointError, UnsupportedModel
from llmkit_loaders.gguf_families import Family, family
from llmkit_loaders.gguf_file import GgufFile, Strings

MAX_LAYERS = 4096
MAX_EXPERTS = 4096
_CONTROL = 3
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")
"""Tokens that end a turn where a file names only the end of the text; taken if the template writes them."""
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def family_of(gguf: GgufFile) -> Family:
    """:raises UnsupportedModel: nobody here reads its architecture."""
    return family(gguf.architecture, Keys(gguf).number("expert_count", 0))


def config_of(gguf: GgufFile) -> dict[str, Any]:
    """Everything the file states about the model, under ``config.json``'s names.

    :raises CheckpointError: something a model needs is not there.
    :raises UnsupportedModel: an architecture or a feature of it that is not read.
    """
    kind, keys = family_of(gguf), Keys(gguf)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{gguf.path}: tensor 'token_embd.weight' is missing")
    heads = keys.number("attention.head_count")
    hidden = keys.number("embedding_length")
    config: dict[str, Any] = {
        "architectures": [kind.architecture],
        "model_type": kind.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.number("feed_forward_length"),
        "num_hidden_layers": keys.number("block_count", maximum=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.number("attention.head_count_kv", heads),
        "head_dim": keys.number("attention.key_length", hidden // heads),
        "max_position_embeddings": keys.number("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": _dtype(gguf),
    }
    for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        token_id = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        # Stated where there is none, too: config classes have defaults of their own.
        config[name] = token_id if isinstance(token_id, int) else None
    scaling = _rope_scaling(gguf, keys, config)
    if scaling:
        config["rope_scaling"] = scaling
    return config | _particulars(gguf, keys, config)


def generation_config_of(gguf: GgufFile) -> dict[str, Any]:
    """What ``generation_config.json`` would have said: ends of sequence and sampling defaults."""
    ends = [
        value
        for key in ("eos", "eot", "eom")
        if isinstance(value := gguf.metadata.get(f"tokenizer.ggml.{key}_token_id"), int)
    ]
    ends = list(dict.fromkeys(ends + _turn_ends(gguf)))
    generation: dict[str, Any] = {"eos_token_id": ends} if ends else {}
    bos = gguf.metadata.get("tokenizer.ggml.bos_token_id")
    if isinstance(bos, int):
        generation["bos_token_id"] = bos
    for key, name in _SAMPLING.items():
        value = gguf.metadata.get(key)
        if isinstance(value, int | float):
            generation[name] = value
    return generation


def encoding_of(gguf: GgufFile) -> str:
    """``dense``, or the packed encoding that most bytes have."""
    sizes: dict[Type, int] = {}
    for tensor in gguf.tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + len(tensor.data)
    packed = {type: size for type, size in sizes.items() if type not in (Type.F32, Type.F16, Type.BF16)}
    return f"gguf:{max(packed, key=lambda type: packed[type]).name}" if packed else "dense"


class Keys:
    """Metadata under the architecture's own prefix, checked for type and size."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf

    def number(self, key: str, default: int | None = None, *, maximum: int = 1 << 31) -> int:
        value = self._get(key, default)
        if isinstance(value, np.ndarray):
            distinct = set(value.tolist())
            if len(distinct) != 1:
                raise UnsupportedModel(f"{self._gguf.path}: {self._name(key)} differs from layer to layer")
            value = distinct.pop()
        lowest = 0 if default == 0 else 1
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= maximum:
            raise CheckpointError(
                f"{self._gguf.path}: {self._name(key)} is {value!r}, not from {lowest} to {maximum}"
            )
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not isinstance(value, int | float) or not 0 < value < 1e12:
            raise CheckpointError(f"{self._gguf.path}: {self._name(key)} is {value!r}, not a positive number")
        return shortest(float(value))

    def has(self, key: str) -> bool:
        return self._name(key) in self._gguf.metadata

    def text(self, key: str, default: str) -> str:
        return str(self._get(key, default))

    def _get(self, key: str, default: Any) -> Any:
        value = self._gguf.metadata.get(self._name(key), default)
        if value is None:
            raise CheckpointError(f"{self._gguf.path}: metadata {self._name(key)!r} is missing")
        return value

    def _name(self, key: str) -> str:
        return f"{self._gguf.architecture}.{key}"


def shortest(value: float) -> float:
    """The decimal that a 32-bit float was written from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _dtype(gguf: GgufFile) -> str:
    types = {tensor.type for tensor in gguf.tensors.values()}
    if types == {Type.F32}:
        return "float32"
    return "bfloat16" if Type.BF16 in types else "float16"


def _turn_ends(gguf: GgufFile) -> list[int]:
    tokens, types = (gguf.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    template = gguf.metadata.get("tokenizer.chat_template")
    if not isinstance(tokens, Strings) or not isinstance(types, np.ndarray) or not isinstance(template, str):
        return []
    names = tokens.decode()
    control = np.flatnonzero(types[: len(names)] == _CONTROL).tolist()
    return [i for i in control if names[i] in _TURN_ENDS and names[i] in template]


def _rope_scaling(gguf: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any] | None:
    if "rope_freqs.weight" in gguf.tensors:
        return _llama3_scaling(gguf, config)
    if "rope_factors_long.weight" in gguf.tensors:
        return _longrope_scaling(gguf, keys, config)
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = keys.real("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModel(f"{gguf.path}: rope scaling {kind!r} is not read; known: linear, yarn")
    scaling = {"rope_type": "yarn", "factor": factor}
    if keys.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = keys.number("rope.scaling.original_context_length")
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if keys.has(f"rope.scaling.{key}"):
            scaling[name] = keys.real(f"rope.scaling.{key}")
    if keys.has("rope.scaling.attn_factor"):
        # llama.cpp multiplies yarn's own magnitude by it; here the product is stated.
        own = 0.1 * float(np.log(factor)) + 1.0
        scaling["attention_factor"] = keys.real("rope.scaling.attn_factor") * own
    return scaling


def _llama3_scaling(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """The converter writes Llama 3.1's frequency divisors; the four numbers they came from are recovered."""
    divisors = _floats(gguf, "rope_freqs.weight")
    factor = round(float(divisors.max()), 4)
    scaling = {"rope_type": "llama3", "factor": factor, **_LLAMA3_ROPE}
    size = 2 * len(divisors)
    frequencies = config["rope_theta"] ** -(np.arange(0, size, 2) / size)
    waves = 2 * np.pi / frequencies
    low, high, context = (_LLAMA3_ROPE[key] for key in _LLAMA3_ROPE)
    smooth = np.clip((context / waves - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if not np.allclose(divisors, expected, rtol=1e-3):
        raise UnsupportedModel(f"{gguf.path}: rope_freqs.weight does not follow Llama 3.1's rope scaling")
    return scaling


def _longrope_scaling(gguf: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    original = keys.number("rope.scaling.original_context_length")
    config["original_max_position_embeddings"] = original
    scaling = {
        "rope_type": "longrope",
        "long_factor": [shortest(value) for value in _floats(gguf, "rope_factors_long.weight").tolist()],
        "short_factor": [shortest(value) for value in _floats(gguf, "rope_factors_short.weight").tolist()],
        "original_max_position_embeddings": original,
    }
    if keys.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = keys.real("rope.scaling.attn_factor")
    return scaling


def _floats(gguf: GgufFile, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    tensor = gguf.tensors.get(name)
    if tensor is None or tensor.type != Type.F32:
        raise CheckpointError(f"{gguf.path}: tensor {name!r} is missing or not F32")
    return tensor.data.view(np.float32)


def _particulars(gguf: GgufFile, keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    """What only this architecture has."""
    kind = config["model_type"]
    if kind in ("llama", "mixtral"):
        own: dict[str, Any] = {
            "hidden_act": "silu",
            "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in gguf.tensors,
        }
        return own if kind == "llama" else own | _experts(keys, "num_local_experts")
    if kind == "qwen3_moe":
        return {
            "hidden_act": "silu",
            "moe_intermediate_size": keys.number("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            **_experts(keys, "num_experts"),
        }
    if kind in ("qwen2", "qwen3"):
        return {"hidden_act": "silu", "attention_bias": "blk.0.attn_q.bias" in gguf.tensors}
    if kind == "phi3":
        own = {"hidden_act": "silu"}
        if keys.has("attention.sliding_window"):
            own["sliding_window"] = keys.number("attention.sliding_window", 0) or None
        if keys.has("rope.dimension_count"):
            own["partial_rotary_factor"] = keys.number("rope.dimension_count") / config["head_dim"]
        return own
    return _gemma(keys, config)


def _experts(keys: Keys, count_name: str) -> dict[str, Any]:
    return {
        count_name: keys.number("expert_count", maximum=MAX_EXPERTS),
        "num_experts_per_tok": keys.number("expert_used_count", maximum=MAX_EXPERTS),
    }


_LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the 27B models: they alone scale attention by hidden size over heads, and no key says so."""


def _gemma(keys: Keys, config: dict[str, Any]) -> dict[str, Any]:
    kind, layers = config["model_type"], config["num_hidden_layers"]
    own: dict[str, Any] = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    if kind == "gemma":
        return own
    largest = layers == _LARGEST_GEMMA[kind]
    own["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
    )
    own["sliding_window"] = keys.number("attention.sliding_window")
    if kind == "gemma2":
        period = 2
        own["attn_logit_softcapping"] = keys.real("attn_logit_softcapping", 50.0)
        own["final_logit_softcapping"] = keys.real("final_logit_softcapping", 30.0)
    else:
        period = keys.number("attention.sliding_window_pattern", 6)
        own["rope_local_base_freq"] = keys.real("rope.freq_base_swa", 10000.0)
        own["attn_logit_softcapping"] = None
        own["final_logit_softcapping"] = (
            keys.real("final_logit_softcapping") if keys.has("final_logit_softcapping") else None
        )
    own["layer_types"] = [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)
    ]
    return own
