"""How each GGUF architecture maps to Hugging Face: parameter names, and what the converter changed.

llama.cpp's converter renames tensors, reorders the rows of Llama's q and k (its rope pairs neighbours,
ours halves), stores Gemma's norms plus one, and stacks the experts of a layer into one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import listing

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_DENSE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
CONFIG_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Not parameters: they become entries of the config."""
_BLOCK = re.compile(r"^blk\.(?P<layer>\d+)\.(?P<leaf>\w+)\.(?P<suffix>weight|bias)$")


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of GGUF files."""

    architecture: str
    """As in ``config.json``."""
    model_type: str
    leaves: dict[str, str]
    """Name within a block -> name within a layer."""
    experts: dict[str, str] = field(default_factory=dict)
    """Stacked tensor within a block -> name of one expert's within a layer, with ``{}`` for its number."""
    permuted: bool = False
    """Rows of q and k are ordered for llama.cpp's rope."""
    norm_offset: bool = False
    """Norm weights are stored plus one."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a GGUF tensor goes: one parameter, or one for each expert."""

    name: str
    """With ``{}`` for the expert's number where ``stacked``."""
    stacked: bool = False
    permuted_for: str | None = None
    """``q`` or ``k`` where the rows must be put back in order."""
    minus_one: bool = False

    def names(self, count: int) -> Iterator[str]:
        return (self.name.format(i) for i in range(count))


_EXPERTS = {f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}
_MIXTRAL_EXPERTS = {
    f"ffn_{part}_exps": f"block_sparse_moe.experts.{{}}.{name}"
    for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}

FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", _DENSE, permuted=True),
    "llama-moe": Family(
        "MixtralForCausalLM",
        "mixtral",
        _DENSE | {"ffn_gate_inp": "block_sparse_moe.gate"},
        _MIXTRAL_EXPERTS,
        permuted=True,
    ),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2", _DENSE),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", _DENSE | _QK_NORM),
    "qwen3moe": Family(
        "Qwen3MoeForCausalLM", "qwen3_moe", _DENSE | _QK_NORM | {"ffn_gate_inp": "mlp.gate"}, _EXPERTS
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        "phi3",
        _DENSE | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "gemma": Family("GemmaForCausalLM", "gemma", _DENSE, norm_offset=True),
    "gemma2": Family("Gemma2ForCausalLM", "gemma2", _DENSE | _GEMMA_NORMS, norm_offset=True),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", _DENSE | _QK_NORM | _GEMMA_NORMS, norm_offset=True),
}


def family(architecture: str, num_experts: int) -> Family:
    """:raises UnsupportedModel: naming it and those that are read."""
    known = FAMILIES.get("llama-moe" if architecture == "llama" and num_experts else architecture)
    if known is None:
        raise UnsupportedModel(
            f"GGUF files of architecture {architecture!r} are not read. Known: "
            f"{listing(name for name in FAMILIES if name != 'llama-moe')}"
        )
    return known


def target(family: Family, name: str) -> Target | None:
    """Where the tensor ``name`` goes; None for one that is part of the config.

    :raises CheckpointError: the architecture has no such tensor.
    """
    if name in CONFIG_TENSORS:
        return None
    match = _BLOCK.match(name)
    if match is None:
        stem, _, suffix = name.rpartition(".")
        if stem not in _OUTER or suffix != "weight":
            raise CheckpointError(_unknown(family, name))
        return Target(f"{_OUTER[stem]}.weight", minus_one=family.norm_offset and stem.endswith("norm"))
    layer, leaf, suffix = match["layer"], match["leaf"], match["suffix"]
    if leaf in family.experts:
        return Target(f"model.layers.{layer}.{family.experts[leaf]}.{suffix}", stacked=True)
    if leaf not in family.leaves:
        raise CheckpointError(_unknown(family, name))
    return Target(
        f"model.layers.{layer}.{family.leaves[leaf]}.{suffix}",
        permuted_for=leaf[-1] if family.permuted and leaf in ("attn_q", "attn_k") else None,
        minus_one=family.norm_offset and leaf.endswith("norm"),
    )


def _unknown(family: Family, name: str) -> str:
    return f"tensor {name!r} is not part of a {family.architecture} in a GGUF file"
