"""Entry point of the CPU's parts; imported in every process, so without torch or numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmkit import hookimpl
from llmkit.contracts import (
    AttentionBackend,
    BackendSpec,
    LinearEnv,
    LinearMethod,
    OpName,
    OpsEnv,
    RegisterAttention,
    RegisterLinearMethod,
    RegisterOps,
)

KV_DTYPES = ("auto", "float32", "bfloat16", "float16")
KEY_TILE = 16
"""Tokens the attention kernels take at a time; a block holds whole tiles."""


@hookimpl
def register_attention_backends(register: RegisterAttention) -> None:
    register("paged-cpu", make_attention, refuses=refuses_attention, priority=10)


@hookimpl
def register_linear_methods(register: RegisterLinearMethod) -> None:
    register("fp16-weights", make_fp16_weights, refuses=refuses_fp16_weights, priority=20)
    register("packed", make_packed, refuses=refuses_packed, priority=10)


@hookimpl
def register_ops(register: RegisterOps) -> None:
    register("cpu-fused", make_ops, refuses=refuses_ops, priority=10)


def make_attention(spec: BackendSpec, options: Any) -> AttentionBackend:
    from llmkit_cpu_paged.backend import PagedCpuBackend

    return PagedCpuBackend(spec)


def refuses_attention(spec: BackendSpec) -> str | None:
    if spec.device != "cpu":
        return f"device is {spec.device}; it runs on cpu"
    if spec.kv_cache_dtype not in KV_DTYPES:
        return f"kv_cache_dtype is {spec.kv_cache_dtype}; it knows {', '.join(KV_DTYPES)}"
    if spec.block_size % KEY_TILE:
        return f"block_size is {spec.block_size}; its kernels take multiples of {KEY_TILE}"
    for index, layer in enumerate(spec.layers):
        if layer.mask != "causal":
            return f"layer {index} is {layer.mask}; its kernels are causal"
    return _missing_numba("float16" in (spec.dtype, spec.kv_cache_dtype))


def make_fp16_weights(env: LinearEnv, options: Any) -> LinearMethod:
    from llmkit_cpu_paged.linear import Fp16Weights

    return Fp16Weights(env)


def refuses_fp16_weights(env: LinearEnv) -> str | None:
    if (reason := _not_fp32_on_cpu(env.device, env.dtype)) is not None:
        return reason
    from llmkit_cpu_paged.linear import missing_fp16

    return missing_fp16()


def make_packed(env: LinearEnv, options: Any) -> LinearMethod:
    from llmkit_cpu_paged.linear import OneDnnPacked

    return OneDnnPacked(env)


def refuses_packed(env: LinearEnv) -> str | None:
    if (reason := _not_fp32_on_cpu(env.device, env.dtype)) is not None:
        return reason
    from llmkit_cpu_paged.linear import missing_packed

    return missing_packed()


def make_ops(env: OpsEnv, options: Any) -> dict[OpName, Callable[..., Any]]:
    from llmkit_cpu_paged.ops import CpuOps

    return CpuOps(env.num_threads).table()


def refuses_ops(env: OpsEnv) -> str | None:
    return _not_fp32_on_cpu(env.device, env.dtype) or _missing_numba(half=False)


def _not_fp32_on_cpu(device: str, dtype: str) -> str | None:
    if device != "cpu":
        return f"device is {device}; it runs on cpu"
    if dtype != "float32":
        return f"dtype is {dtype}; it takes float32 activations"
    return None


def _missing_numba(half: bool) -> str | None:
    try:
        import llvmlite.binding
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error}); install it with: pip install numba"
    if half and llvmlite.binding.get_host_cpu_features().get("f16c") is False:
        return "this CPU cannot convert float16"
    return None
