"""A Llama checkpoint of any format in transformers' own implementation, to compare with."""

from __future__ import annotations

from typing import Any

import torch

from llmkit.assemble.model import OpenedModel
from llmkit.contracts import LoaderSpec
from llmkit.registry import Registry


def transformers_llama(opened: OpenedModel, registry: Registry, dtype: torch.dtype) -> Any:
    """The same weights, dequantized; eager attention, in eval mode."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_dict(dict(opened.info.config))
    config._attn_implementation = "eager"
    weights = registry.create("loader", opened.loader_name, LoaderSpec(opened.files)).weights()
    with torch.device("meta"):  # no random weights first
        made = LlamaForCausalLM(config)
    made.model.rotary_emb = type(made.model.rotary_emb)(config)
    state = {ref.name: ref.dense(torch.float32).to(dtype) for ref in weights}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    made.load_state_dict(state, assign=True)
    return made.eval()
