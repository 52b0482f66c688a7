"""What the CPU's parts refuse and in which words, and how ``auto`` ranks them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from llmkit.config import PluginConfig
from llmkit.contracts import AttentionSpec, BackendSpec, LinearEnv, OpsEnv
from llmkit.plugins import load_plugins
from llmkit_cpu_paged import plugin
from llmkit_cpu_paged.linear import missing_fp16

LAYER = AttentionSpec(6, 2, 16, 16, 0.25)
SPEC = BackendSpec((LAYER,), "float32", "auto", 16, "cpu", False)
FP32 = LinearEnv("cpu", "float32", "dense", False)


def test_serves_what_it_is_for() -> None:
    assert plugin.refuses_attention(SPEC) is None
    assert plugin.refuses_attention(replace(SPEC, dtype="bfloat16", block_size=128)) is None
    assert plugin.refuses_ops(OpsEnv("cpu", "float32", True)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cuda"}, "device is cuda; it runs on cpu"),
        ({"block_size": 8}, "block_size is 8; its kernels take multiples of 16"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is fp8; it knows auto, float32, bfloat16, float16"),
        (
            {"layers": (LAYER, replace(LAYER, mask="bidirectional"))},
            "layer 1 is bidirectional; its kernels are causal",
        ),
    ],
    ids=["device", "block size", "kv dtype", "bidirectional"],
)
def test_refuses(change: dict[str, object], reason: str) -> None:
    assert plugin.refuses_attention(replace(SPEC, **change)) == reason  # type: ignore[arg-type]


def test_says_what_to_install_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    for reason in (plugin.refuses_attention(SPEC), plugin.refuses_ops(OpsEnv("cpu", "float32", False))):
        assert reason is not None
        assert "install it with: pip install numba" in reason


def test_without_numba_auto_takes_the_reference_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    choice = load_plugins(PluginConfig()).registry.choose("attention", "auto", SPEC)
    assert choice.name == "reference"
    assert [name for name, _ in choice.passed_over] == ["paged-cpu"]
    assert "numba" in choice.passed_over[0][1]


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
def test_auto_takes_the_fastest_for_the_dtype(deterministic: bool) -> None:
    registry = load_plugins(PluginConfig()).registry
    env = replace(FP32, deterministic=deterministic)
    # Whether FBGEMM's rows are bit-equal is measured, and differs between CPUs.
    fastest = ["fp16-weights"] if missing_fp16() is None else []
    assert registry.usable("linear", env) == [*fastest, "packed", "torch"]
    assert registry.usable("linear", replace(env, dtype="bfloat16")) == ["torch"]
    spec = replace(SPEC, deterministic=deterministic)
    assert registry.choose("attention", "auto", spec).name == "paged-cpu"
