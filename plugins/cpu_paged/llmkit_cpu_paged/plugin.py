"""Entry point of the CPU's parts; imported in every process, so without torch or numba."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import (
    LinearEnv,
    LinearMethod,
    RegisterLinearMethod,
)


@hookimpl
def register_linear_methods(register: RegisterLinearMethod) -> None:
    register("fp16-weights", make_fp16_weights, refuses=refuses_fp16_weights, priority=20)
    register("packed", make_packed, refuses=refuses_packed, priority=10)


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


def _not_fp32_on_cpu(device: str, dtype: str) -> str | None:
    if device != "cpu":
        return f"device is {device}; it runs on cpu"
    if dtype != "float32":
        return f"dtype is {dtype}; it takes float32 activations"
    return None
