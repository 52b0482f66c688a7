"""What a config of the Llama family says, in one frozen value; no torch, for the front process too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmkit.contracts import listing

_ROPE_NUMBERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
}
"""Rope type -> the positive numbers it must have, and the numbers it may have."""
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Family:
    """Where an architecture differs from Llama."""

    qkv_bias: bool | None = None
    """None: as ``attention_bias`` says."""
    output_bias: bool | None = None
    qk_norm: bool = False
    always_sliding: bool = False
    """``sliding_window`` alone switches windows on; else ``use_sliding_window`` must too."""
    window_default: int | None = None
    rope_base: float = 10000.0
    head_size: int | None = None
    tied_default: bool = False
    skips_rope: bool = False


FAMILIES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(qkv_bias=False, output_bias=False, always_sliding=True, window_default=4096),
    "Qwen2ForCausalLM": Family(qkv_bias=True, output_bias=False, window_default=4096),
    "Qwen3ForCausalLM": Family(qk_norm=True, window_default=4096, head_size=128),
    "SmolLM3ForCausalLM": Family(skips_rope=True, rope_base=2000000.0, tied_default=True),
}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes and switches of one model of the family."""

    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    windows: tuple[int | None, ...]
    """A layer each; a token sees itself and the ``window - 1`` before it."""
    ropes: tuple[bool, ...]
    """A layer each: whether it rotates q and k."""
    rope_base: float
    rope_type: str
    rope_parameters: dict[str, Any]
    max_position: int


def read_shape(architecture: str, config: dict[str, Any]) -> LlamaShape:
    """Read a config that :func:`unsupported` has passed."""
    family = FAMILIES[architecture]
    num_layers, num_heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    attention_bias = bool(config.get("attention_bias", False))
    head_size = int(config.get("head_dim") or family.head_size or hidden // num_heads)
    rope = _rope(config)
    ropes = _rotating_layers(family, config, num_layers)
    return LlamaShape(
        hidden_size=hidden,
        mlp_size=int(config["intermediate_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_size=head_size,
        vocab_size=int(config["vocab_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        tied=bool(config.get("tie_word_embeddings", family.tied_default)),
        windows=_windows(family, config, ropes),
        ropes=ropes,
        rope_base=float(_given(rope, config, "rope_theta", family.rope_base)),
        rope_type=_rope_type(rope),
        rope_parameters=rope,
        max_position=int(config.get("max_position_embeddings") or 0),
    )


def unsupported(architecture: str, config: dict[str, Any]) -> str | None:
    """Why the native implementation cannot run this config, in one clause, or None."""
    if architecture not in FAMILIES:
        return f"it knows {listing(FAMILIES)}"
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [key for key in needed if not isinstance(config.get(key), int)]
    if missing:
        return f"config lacks {listing(missing)}"
    if (reason := quantized(config)) is not None:
        return reason
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        return f"hidden_act is {activation!r}; it knows silu"
    if (reason := _strange_rope(config)) is not None:
        return reason
    rope = _rope(config)
    if _given(rope, config, "partial_rotary_factor", 1.0) != 1.0:
        return "only a part of each head rotates"
    strange = set(config.get("layer_types") or ()) - set(_LAYER_TYPES)
    if strange:
        return f"layer_types has {listing(strange)}; it knows {listing(_LAYER_TYPES)}"
    if config["num_attention_heads"] % (config.get("num_key_value_heads") or config["num_attention_heads"]):
        return "num_attention_heads is no multiple of num_key_value_heads"
    return None


def quantized(config: dict[str, Any]) -> str | None:
    """Why weights in the Hugging Face layout of a quantizer cannot be read, or None where there are none."""
    entry = config.get("quantization_config")
    if entry is None:
        return None
    if not isinstance(entry, dict):
        return f"quantization_config is {entry!r}, not an object that names its quant_method"
    return f"weights quantized by {entry.get('quant_method', 'unknown')!r} are not supported"


def _strange_rope(config: dict[str, Any]) -> str | None:
    """Why the rope entry cannot be followed, or None."""
    entry = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(entry, dict):
        return f"its rope entry is {entry!r}, not an object"
    kind = _rope_type(entry)
    if kind not in _ROPE_NUMBERS:
        return f"rope type is {kind!r}; it knows {listing(_ROPE_NUMBERS)}"
    required, optional = _ROPE_NUMBERS[kind]
    # yarn takes either from the model's own length
    otherwise = config.get("max_position_embeddings") if kind == "yarn" else None
    wrong = [key for key in required if not _positive(entry.get(key) or otherwise)]
    wrong += [key for key in optional if not isinstance(entry.get(key), int | float | None)]
    if not _positive(_given(entry, config, "rope_theta", 1.0)):
        wrong.append("rope_theta")
    return f"rope type {kind!r} without a number for {listing(wrong)}" if wrong else None


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """``rope_parameters``, or ``rope_scaling`` as older checkpoints call it."""
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _rope_type(rope: dict[str, Any]) -> str:
    if any(isinstance(value, dict) for value in rope.values()):
        return "a different one for each kind of layer"
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _given(rope: dict[str, Any], config: dict[str, Any], key: str, default: float) -> Any:
    for source in (rope, config):
        if source.get(key) is not None:
            return source[key]
    return default


def _windows(family: Family, config: dict[str, Any], ropes: tuple[bool, ...]) -> tuple[int | None, ...]:
    num_layers = len(ropes)
    window = config.get("sliding_window", family.window_default)
    if window is None or not (family.always_sliding or config.get("use_sliding_window", False)):
        return (None,) * num_layers
    if family.always_sliding:
        return (int(window),) * num_layers
    kinds = config.get("layer_types")
    if kinds is None:
        first = int(config.get("max_window_layers", 28))
        slides = [not ropes[i] if family.skips_rope else i >= first for i in range(num_layers)]
    else:
        slides = [kind == "sliding_attention" for kind in kinds]
    return tuple(int(window) if slide else None for slide in slides)


def _rotating_layers(family: Family, config: dict[str, Any], num_layers: int) -> tuple[bool, ...]:
    if not family.skips_rope:
        return (True,) * num_layers
    flags = config.get("no_rope_layers")  # despite its name, 1 marks the layers that do rotate
    if flags is None:
        interval = int(config.get("no_rope_layer_interval", 4))
        flags = [(index + 1) % interval != 0 for index in range(num_layers)]
    return tuple(bool(flag) for flag in flags)


__all__ = ["FAMILIES", "Family", "LlamaShape", "quantized", "read_shape", "unsupported"]
