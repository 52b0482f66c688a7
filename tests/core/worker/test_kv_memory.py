from __future__ import annotations

import resource

import psutil
import pytest
import torch

from llmkit.contracts import KVCacheSpec, KVGroup, KVLayout
from llmkit.errors import OutOfMemory, StartupError
from llmkit.worker.kv_memory import BlockMemory

CPU = torch.device("cpu")
FULL = KVCacheSpec("full", 8, 96, "toy")
SLIDING = KVCacheSpec("sliding", 8, 64, "toy", window=16)
SHARED = KVCacheSpec("shared", 8, 0, "toy", shares=1)
NONE = KVCacheSpec("none", 8, 0, "toy")
LAYERS = (FULL, SLIDING, SHARED, FULL, NONE, SLIDING)
LAYOUT = KVLayout((KVGroup(FULL, (0, 3)), KVGroup(SLIDING, (1, 5))), num_blocks=5, num_slots=2, page_bytes=96)


def test_layers_of_different_groups_share_a_slots_blocks_and_layers_of_one_group_do_not() -> None:
    memory = BlockMemory(LAYOUT, LAYERS, CPU)
    assert [memory.group(layer) for layer in (0, 1, 2, 3, 5)] == [0, 1, 1, 0, 1]
    assert memory.layer(0).shape == (5, 96)
    assert memory.layer(1).shape == (5, 64)
    assert memory.layer(0).stride(0) == memory.layer(1).stride(0) == 96
    memory.layer(0)[3] = 7
    assert (memory.layer(1)[3] == 7).all()
    assert not memory.layer(3).any()
    assert not memory.layer(5).any()


def test_a_shared_layer_is_its_source() -> None:
    memory = BlockMemory(LAYOUT, LAYERS, CPU)
    memory.layer(1)[2] = 9
    assert (memory.layer(2)[2] == 9).all()


def test_a_layer_without_cache_has_no_memory() -> None:
    with pytest.raises(KeyError):
        BlockMemory(LAYOUT, LAYERS, CPU).layer(4)


def test_a_layer_that_the_layout_forgot_is_refused() -> None:
    with pytest.raises(StartupError, match="attention layer 6"):
        BlockMemory(LAYOUT, (*LAYERS, FULL), CPU)


def test_copies_read_every_source_before_they_write() -> None:
    memory = BlockMemory(LAYOUT, LAYERS, CPU)
    for block in range(5):
        memory.layer(0)[block] = block
        memory.layer(5)[block] = 10 + block
    memory.copy([(1, 2), (2, 3), (1, 4)])
    assert memory.layer(0)[:, 0].tolist() == [0, 1, 1, 2, 1]
    assert memory.layer(5)[:, 0].tolist() == [10, 11, 11, 12, 11]


def test_a_pool_costs_memory_only_where_it_is_written() -> None:
    spec = KVCacheSpec("full", 16, 1 << 20, "toy")
    layout = KVLayout((KVGroup(spec, (0,)),), num_blocks=1 << 11, num_slots=1, page_bytes=1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = BlockMemory(layout, (spec,), CPU)
    assert not memory.layer(0)[1234].any()
    memory.layer(0)[77] = 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < layout.total_bytes / 8


def test_more_than_the_machine_can_map_is_an_error_with_the_flag_to_set() -> None:
    spec = KVCacheSpec("full", 16, 1 << 40, "toy")
    layout = KVLayout((KVGroup(spec, (0,)),), num_blocks=1 << 12, num_slots=1, page_bytes=1 << 40)
    with pytest.raises(OutOfMemory, match="--kv-cache-memory-bytes"):
        BlockMemory(layout, (spec,), CPU)


def test_pages_given_back_cost_nothing_and_read_as_zeros() -> None:
    layout = KVLayout((KVGroup(FULL, (0,)),), num_blocks=64, num_slots=1, page_bytes=1 << 20)
    memory = BlockMemory(layout, (FULL,), CPU)
    (slot,) = memory.slots
    view = memory.layer(0)
    slot.fill_(1)
    before = psutil.Process().memory_info().rss
    memory.give_back()
    assert before - psutil.Process().memory_info().rss > 50 << 20
    assert not view.any()
    view[5] = 3
    assert (memory.slots[0][5, : view.shape[1]] == 3).all(), "who was bound before is bound still"
