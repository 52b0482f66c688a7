"""Tiny random models of many architectures, in the Hugging Face layout, for tests.

Weights are scaled so that attention is far from uniform and logits spread: with the usual small
initialisation a wrong mask, scale or frequency hardly shows in the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llmkit.contracts import listing
from llmkit.errors import UsageError

VOCAB_SIZE = 320
"""Covers the byte tokenizer of ``llmkit.testing``."""
WINDOW = 9
"""Sliding window of the models that have one; tests use longer sequences."""
MAX_POSITION = 256


@dataclass(frozen=True, slots=True)
class TinyModel:
    """How one architecture is made small."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    """Over :data:`_BASE`; None removes an entry."""
    sharpness: float = 1.85
    """Standard deviation of queries and of keys."""


_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITION,
    "tie_word_embeddings": False,
    "pad_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_OWN_HEAD_SIZE = {"head_dim": None, "hidden_size": 96}
_GEMMA = {
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 16,
    "sliding_window": WINDOW,
    "num_hidden_layers": 4,
}

MODELS: Mapping[str, TinyModel] = {
    "LlamaForCausalLM": TinyModel("llama"),
    "MistralForCausalLM": TinyModel("mistral", {"sliding_window": WINDOW}),
    "Qwen2ForCausalLM": TinyModel(
        "qwen2",
        {**_OWN_HEAD_SIZE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "Qwen3ForCausalLM": TinyModel("qwen3", {"tie_word_embeddings": True}, sharpness=2.5),
    "SmolLM3ForCausalLM": TinyModel("smollm3", {**_OWN_HEAD_SIZE, "no_rope_layer_interval": 2}),
    "Gemma2ForCausalLM": TinyModel(
        "gemma2",
        {**_GEMMA, "attn_logit_softcapping": 12.0, "final_logit_softcapping": 6.0},
        sharpness=3.0,
    ),
    "Gemma3ForCausalLM": TinyModel(
        "gemma3_text", {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2}, sharpness=2.5
    ),
    "Phi3ForCausalLM": TinyModel("phi3", {**_OWN_HEAD_SIZE, "sliding_window": WINDOW}),
    "GPT2LMHeadModel": TinyModel(
        "gpt2",
        {
            **dict.fromkeys(_BASE),
            "vocab_size": VOCAB_SIZE,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 3,
            "n_positions": MAX_POSITION,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        sharpness=5.0,
    ),
    "MixtralForCausalLM": TinyModel("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen3MoeForCausalLM": TinyModel(
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
        sharpness=2.5,
    ),
    "Olmo2ForCausalLM": TinyModel("olmo2", _OWN_HEAD_SIZE, sharpness=2.5),
    "GraniteForCausalLM": TinyModel(
        "granite",
        {
            **_OWN_HEAD_SIZE,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.5,
        },
    ),
    "StableLmForCausalLM": TinyModel("stablelm", _OWN_HEAD_SIZE),
    "CohereForCausalLM": TinyModel("cohere", {**_OWN_HEAD_SIZE, "logit_scale": 0.8}),
    "Starcoder2ForCausalLM": TinyModel("starcoder2", {**_OWN_HEAD_SIZE, "sliding_window": WINDOW}),
    "GPTNeoXForCausalLM": TinyModel("gpt_neox", _OWN_HEAD_SIZE),
    "PhiForCausalLM": TinyModel("phi", _OWN_HEAD_SIZE),
    "GemmaForCausalLM": TinyModel("gemma", {"tie_word_embeddings": True}),
}
"""Architecture -> how :func:`build` makes it."""

_ENCODER: dict[str, Any] = {**_BASE, "num_key_value_heads": None, "head_dim": None, "num_attention_heads": 3}
_DISTIL: dict[str, Any] = {**_ENCODER, "dim": 48, "n_layers": 3, "n_heads": 3, "hidden_dim": 80}
_MODERN: dict[str, Any] = {
    **_ENCODER,
    "num_hidden_layers": 4,
    "local_attention": 2 * WINDOW,
    "cls_token_id": 0,
    "sep_token_id": 1,
}

POOLING: Mapping[str, TinyModel] = {
    "BertModel": TinyModel("bert", _ENCODER),
    "RobertaModel": TinyModel("roberta", _ENCODER),
    "DistilBertModel": TinyModel("distilbert", _DISTIL),
    "ModernBertModel": TinyModel("modernbert", _MODERN),
    "Qwen3Model": TinyModel("qwen3", sharpness=2.5),
    "Gemma3TextModel": TinyModel("gemma3_text", {**_GEMMA, "use_bidirectional_attention": True}),
    "BertForSequenceClassification": TinyModel("bert", {**_ENCODER, "num_labels": 1}),
    "XLMRobertaForSequenceClassification": TinyModel("xlm-roberta", {**_ENCODER, "num_labels": 3}),
    "DistilBertForSequenceClassification": TinyModel("distilbert", {**_DISTIL, "num_labels": 3}),
    "ModernBertForSequenceClassification": TinyModel(
        "modernbert", {**_MODERN, "classifier_pooling": "mean", "num_labels": 3}
    ),
    "Qwen3ForSequenceClassification": TinyModel("qwen3", {"num_labels": 3, "pad_token_id": None}, 2.5),
    "BertForTokenClassification": TinyModel("bert", {**_ENCODER, "num_labels": 5}),
}
"""Architectures that embed or classify -> how :func:`build` makes them."""


def build(
    directory: Path, architecture: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> Path:
    """Write config.json and model.safetensors of a random model into ``directory``; returns it.

    ``overrides`` are config entries. The same arguments give the same files.
    """
    model = make(architecture, seed=seed, **overrides).to(getattr(torch, dtype))
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    return directory


def make(architecture: str, *, seed: int = 0, **overrides: Any) -> Any:
    """The transformers model itself, fp32, eager attention, in eval mode."""
    from transformers import AutoConfig

    tiny = MODELS.get(architecture) or POOLING.get(architecture)
    if tiny is None:
        raise UsageError(f"no tiny {architecture!r}; there are {listing([*MODELS, *POOLING])}")
    entries = _BASE | tiny.config | overrides
    config = AutoConfig.for_model(tiny.model_type, **{k: v for k, v in entries.items() if v is not None})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _maker(architecture).from_config(config, dtype=torch.float32, attn_implementation="eager")
        _scale(model, tiny.sharpness)
    made: Any = model.eval()
    return made


def _maker(architecture: str) -> Any:
    """The AutoModel that makes it."""
    import transformers

    if architecture.endswith("ForSequenceClassification"):
        return transformers.AutoModelForSequenceClassification
    if architecture.endswith("ForTokenClassification"):
        return transformers.AutoModelForTokenClassification
    return transformers.AutoModelForCausalLM if architecture in MODELS else transformers.AutoModel


def config_of(directory: Path) -> dict[str, Any]:
    """The config a checkpoint in ``directory`` carries."""
    loaded: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return loaded


def _scale(model: nn.Module, sharpness: float) -> None:
    """Random weights of a width that keeps activations near one and makes queries and keys sharp."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            if name.endswith("bias"):
                weight.copy_(0.1 * noise)
            elif weight.ndim == 1:
                gain = sharpness if "q_norm" in name or "k_norm" in name else 1.0
                # norms multiply by the weight or, in Gemma, by one more than it: keep what they start from
                weight.add_(gain - 1.0 + 0.1 * noise)
            elif "embed" in name or "wte" in name or "wpe" in name:
                weight.copy_(0.3 * noise)
            else:
                weight.copy_(noise * _gain(name, sharpness) / weight.shape[-1] ** 0.5)


_QUERIES_AND_KEYS = (
    *("q_proj", "k_proj", "qkv_proj", "query_key_value", "c_attn"),
    *(".query.", ".key.", "q_lin", "k_lin", "Wqkv"),
)


def _gain(name: str, sharpness: float) -> float:
    if any(part in name for part in _QUERIES_AND_KEYS):
        return sharpness
    return 2.0 if "lm_head" in name or "embed_out" in name else 1.0


__all__ = [
    "MAX_POSITION",
    "MODELS",
    "POOLING",
    "VOCAB_SIZE",
    "WINDOW",
    "TinyModel",
    "build",
    "config_of",
    "make",
]
