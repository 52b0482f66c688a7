"""Groups, blocks and context from what the layers store and the memory holds."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import KVCacheSpec
from llmkit.engine.layout import KVBudget, PlannedLayout, blocks_for, form_groups, plan_layout
from llmkit.errors import LlmkitError, OutOfMemory, PluginError, UnsupportedModel, UsageError

FULL = KVCacheSpec("full", 16, 1024, "x")
SLIDING = KVCacheSpec("sliding", 16, 1024, "x", window=64)
BIG = KVCacheSpec("full", 16, 2048, "x")
SHARED = KVCacheSpec("shared", 16, 0, "x", shares=0)
NONE = KVCacheSpec("none", 16, 0, "x")
SCHEDULER = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=32)


def plan(
    layers: list[KVCacheSpec], kv_bytes: int, *, cache: dict[str, Any] | None = None, **context: Any
) -> PlannedLayout:
    settings: dict[str, Any] = {"model_len": 4096, "max_model_len": None, **context}
    budget = KVBudget(layers, kv_bytes, "a quarter of 4 MiB")
    return plan_layout(budget, CacheConfig(**(cache or {})), SCHEDULER, **settings)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        pytest.param([FULL] * 4, ([(0, 1, 2, 3)], 4), id="one-kind"),
        pytest.param([FULL, SLIDING] * 2, ([(0, 2), (1, 3)], 2), id="two-kinds-of-equal-number"),
        pytest.param([SLIDING] * 5 + [FULL] * 4, ([(0, 1, 2, 3, 4), (5, 6, 7, 8)], 5), id="nearly-equal"),
        pytest.param(
            [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL, SLIDING],
            ([(0, 1), (3, 4), (6,), (2, 5)], 2),
            id="many-of-one-kind",
        ),
        pytest.param([FULL, SHARED, FULL, NONE], ([(0, 2)], 2), id="shared-and-none-have-no-slot"),
        pytest.param([NONE, NONE], ([], 0), id="no-cache-at-all"),
        pytest.param([BIG, FULL], ([(0,), (1,)], 1), id="other-bytes-other-group"),
    ],
)
def test_groups(layers: list[KVCacheSpec], expected: tuple[list[tuple[int, ...]], int]) -> None:
    groups, num_slots = form_groups(layers)
    assert ([group.layers for group in groups], num_slots) == expected
    assert all(layers[index] == group.spec for group in groups for index in group.layers)


def test_a_page_is_as_large_as_the_largest_block() -> None:
    layout = plan([BIG, FULL], 1 << 20, model_len=256).layout
    assert (layout.num_slots, layout.page_bytes) == (1, 2048)
    assert layout.total_bytes <= (1 << 20) + 2048


@pytest.mark.parametrize(
    ("spec", "num_tokens", "chunk", "expected"),
    [
        (FULL, 1, 32, 1),
        (FULL, 16, 32, 1),
        (FULL, 17, 32, 2),
        (SLIDING, 17, 32, 2),
        (SLIDING, 10_000, 1, 5),
        (SLIDING, 10_000, 32, 7),
    ],
)
def test_blocks_of_a_sequence(spec: KVCacheSpec, num_tokens: int, chunk: int, expected: int) -> None:
    assert blocks_for(spec, num_tokens, chunk) == expected


def test_the_context_is_the_model_s_where_it_fits() -> None:
    planned = plan([FULL] * 2, 1 << 30)
    assert planned.max_model_len == 4096
    assert planned.notes == ("context 4096: the model's own",)
    # Twice what two sequences of 256 blocks can hold, and the null block.
    assert planned.layout.num_blocks == 1 + 2 * 2 * 256


def test_the_context_is_the_largest_that_fits() -> None:
    planned = plan([FULL] * 2, 2 * 1024 * 200)
    assert planned.layout.num_blocks == 201
    assert planned.max_model_len == 3200
    assert planned.notes == (
        "context 3200 of the model's 4096: one sequence of it fits 400.0 KiB of KV memory "
        "(a quarter of 4 MiB)",
    )


def test_sliding_layers_carry_more_context() -> None:
    blocks = 2 * 150
    full, mixed = plan([FULL] * 4, 4096 * blocks // 2), plan([FULL, SLIDING] * 2, 2048 * blocks)
    assert full.max_model_len == 150 * 16
    assert mixed.max_model_len == 4096


def test_asked_bytes_and_blocks_are_honoured_whole() -> None:
    asked = plan([FULL], 1 << 20, cache={"kv_cache_memory_bytes": 1 << 20}, model_len=64)
    assert asked.layout.num_blocks == 1025
    override = plan([FULL], 1 << 20, cache={"num_gpu_blocks_override": 9}, model_len=64)
    assert override.layout.num_blocks == 9


def test_a_model_without_a_limit() -> None:
    planned = plan([FULL], 1 << 30, model_len=None)
    assert planned.max_model_len == 2048
    assert "--max-model-len" in planned.notes[0]
    assert plan([FULL], 1 << 30, model_len=None, max_model_len=9999).max_model_len == 9999


def test_a_model_without_a_cache() -> None:
    planned = plan([NONE], 0)
    assert (planned.max_model_len, planned.layout.total_bytes, planned.layout.groups) == (4096, 0, ())


@pytest.mark.parametrize(
    ("layers", "kv_bytes", "fields", "error", "message"),
    [
        pytest.param(
            [FULL],
            1 << 20,
            {"max_model_len": 5000},
            UsageError,
            "--max-model-len 5000.*4096",
            id="beyond-model",
        ),
        pytest.param(
            [FULL] * 2,
            2 * 1024 * 200,
            {"max_model_len": 4000},
            OutOfMemory,
            "--max-model-len 4000 does not fit 400.0 KiB .*the largest that fits is 3200",
            id="asked-and-not-fitting",
        ),
        pytest.param(
            [FULL], 1024 * 100, {}, OutOfMemory, "only 1600 tokens .*needs 2048", id="under-the-least"
        ),
        pytest.param([FULL], 0, {}, OutOfMemory, "only 0 tokens", id="nothing"),
        pytest.param([FULL], 1024, {"model_len": 17}, OutOfMemory, "only 16 .*needs 17", id="tiny-model"),
        pytest.param(
            [FULL],
            1 << 20,
            {"cache": {"num_gpu_blocks_override": 3}, "max_model_len": 64},
            OutOfMemory,
            "--num-gpu-blocks-override 3; the largest that fits is 32.* more with --num-gpu-blocks-override$",
            id="few-blocks-override",
        ),
        pytest.param(
            [FULL, KVCacheSpec("state", 16, 8, "x")],
            1 << 20,
            {},
            UnsupportedModel,
            "layer 1.*'state'",
            id="state",
        ),
        pytest.param(
            [KVCacheSpec("cross", 16, 8, "x")], 1, {}, UnsupportedModel, "layer 0.*'cross'", id="cross"
        ),
        pytest.param([SHARED, FULL], 1 << 20, {}, PluginError, "layer 0 shares", id="shares-itself"),
        pytest.param(
            [FULL, KVCacheSpec("full", 32, 8, "x")], 1 << 20, {}, PluginError, "32 tokens", id="block-sizes"
        ),
        pytest.param(
            [KVCacheSpec("sliding", 16, 8, "x")],
            1 << 20,
            {},
            PluginError,
            "wrongly",
            id="sliding-without-window",
        ),
    ],
)
def test_refusals(
    layers: list[KVCacheSpec], kv_bytes: int, fields: dict[str, Any], error: type[LlmkitError], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(layers, kv_bytes, **fields)


def test_a_small_model_needs_no_more_than_its_own_context() -> None:
    assert plan([FULL], 1024 * 4, model_len=64).max_model_len == 64
