"""Entry point of the plain torch parts; imported in every process, so without torch."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import (
    AttentionBackend,
    BackendSpec,
    LinearEnv,
    LinearMethod,
    RegisterAttention,
    RegisterLinearMethod,
)

KV_DTYPES = ("auto", "float32", "bfloat16", "float16")


@hookimpl
def register_attention_backends(register: RegisterAttention) -> None:
    register("reference", make_attention, refuses=refuses_attention)


@hookimpl
def register_linear_methods(register: RegisterLinearMethod) -> None:
    register("torch", make_linear, refuses=refuses_linear)


def make_attention(spec: BackendSpec, options: Any) -> AttentionBackend:
    from llmkit_torch_reference.attention import ReferenceBackend

    return ReferenceBackend(spec)


def refuses_attention(spec: BackendSpec) -> str | None:
    if spec.deterministic:
        return "its matrix products round differently from batch to batch"
    if spec.kv_cache_dtype not in KV_DTYPES:
        return f"kv_cache_dtype is {spec.kv_cache_dtype}; it knows {', '.join(KV_DTYPES)}"
    return None


def make_linear(env: LinearEnv, options: Any) -> LinearMethod:
    from llmkit_torch_reference.linear import RowTiledLinear, TorchLinear

    return RowTiledLinear(env) if env.deterministic else TorchLinear(env)


def refuses_linear(env: LinearEnv) -> str | None:
    return None
