"""Entry point; imported in every llmkit process, so without torch."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit import hookimpl
from llmkit.contracts import AttentionBackend, BackendSpec, RegisterAttention


@dataclass(frozen=True)
class Options:
    """``--plugin-option int8-kv.per_head=true``"""

    per_head: bool = False
    """A scale for every head of a token instead of one for the token: closer, and a little larger."""


@hookimpl
def register_attention_backends(register: RegisterAttention) -> None:
    register("int8-kv", make, refuses=refuses)


def make(spec: BackendSpec, options: Options) -> AttentionBackend:
    from llmkit_int8_kv.backend import Int8Backend

    return Int8Backend(spec, options.per_head)


def refuses(spec: BackendSpec) -> str | None:
    if spec.kv_cache_dtype not in ("auto", "int8"):
        return f"kv_cache_dtype is {spec.kv_cache_dtype}; it stores int8"
    if spec.deterministic:
        return "its products round differently from batch to batch"
    for index, layer in enumerate(spec.layers):
        if layer.mask != "causal":
            return f"layer {index} is {layer.mask}; it knows causal layers"
        if layer.soft_cap is not None:
            return f"layer {index} caps its scores; it does not"
    return None
