"""How the KV memory is cut into groups and blocks, and how long a context it carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.errors import OutOfMemory, PluginError, UnsupportedModel, UsageError
from llmkit.kv import KVCacheSpec, KVGroup, KVLayout

LEAST_CONTEXT = 2048
"""Tokens; a server whose memory carries less than this, and less than the model's own, does not start."""
LARGEST_GAP = 1.25
"""Kinds of layers whose numbers differ by no more than this factor form one group each."""
SPARE_FOR_PREFIXES = 2
"""The pool is never cut larger than this many times what all running requests can hold."""


@dataclass(frozen=True, slots=True)
class KVBudget:
    """What the workers offer: their layers' specs and bytes, and how the bytes came about."""

    layers: Sequence[KVCacheSpec]
    kv_bytes: int
    kv_why: str


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """A layout, the context it carries, and sentences for the start-up summary."""

    layout: KVLayout
    max_model_len: int
    notes: tuple[str, ...]


def plan_layout(
    budget: KVBudget,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    model_len: int | None,
    max_model_len: int | None,
) -> PlannedLayout:
    """Cut the pool and settle the context.

    ``model_len`` is the model's own limit (None: it names none), ``max_model_len`` what was asked for.

    :raises UsageError: more context was asked for than the model has.
    :raises OutOfMemory: the context does not fit; the message names the largest that does.
    :raises UnsupportedModel: a layer keeps a kind of state that cannot be served.
    """
    check_context(model_len, max_model_len)
    groups, num_slots = form_groups(budget.layers)
    page_bytes = max((group.spec.block_bytes for group in groups), default=0)
    bytes_a_block = num_slots * page_bytes
    chunk = scheduler.max_num_batched_tokens
    notes: list[str] = []

    num_blocks = 1 + budget.kv_bytes // bytes_a_block if bytes_a_block else 1
    memory = _Memory(f"{_size(budget.kv_bytes)} of KV memory ({budget.kv_why})", "--kv-cache-memory-bytes")
    if cache.num_gpu_blocks_override is not None:
        num_blocks = cache.num_gpu_blocks_override
        memory = _Memory(f"--num-gpu-blocks-override {num_blocks}", "--num-gpu-blocks-override")
    context = _settle_context(groups, num_blocks - 1, chunk, memory, model_len, max_model_len, notes)

    if cache.num_gpu_blocks_override is None and cache.kv_cache_memory_bytes is None:
        one = sequence_blocks(groups, context, chunk)
        num_blocks = min(num_blocks, 1 + SPARE_FOR_PREFIXES * one * scheduler.max_num_seqs)
    return PlannedLayout(
        layout=KVLayout(tuple(groups), num_blocks, num_slots, page_bytes),
        max_model_len=context,
        notes=tuple(notes),
    )


def check_context(model_len: int | None, asked: int | None) -> None:
    """:raises UsageError: more context was asked for than the model has."""
    if asked is not None and model_len is not None and asked > model_len:
        raise UsageError(
            f"--max-model-len {asked}: the model was made for {model_len} tokens and serves no more"
        )


def form_groups(layers: Sequence[KVCacheSpec]) -> tuple[list[KVGroup], int]:
    """Groups of layers with equal specs, and the number of slots that each group fills at most.

    Where one kind has many more layers than another, its layers form several groups as large as the
    smallest kind, so that a block of any group fills about as many slots. ``shared`` layers follow the
    layer they read and ``none`` layers have no cache: neither is in a group.
    """
    kinds: dict[KVCacheSpec, list[int]] = {}
    for index, spec in enumerate(layers):
        if spec.kind in ("state", "cross"):
            raise UnsupportedModel(
                f"attention layer {index} keeps KV of kind {spec.kind!r}, which llmkit cannot serve yet; "
                "it serves full, sliding, shared and none"
            )
        if spec.kind == "shared":
            _check_sharing(layers, index)
        elif spec.kind != "none":
            _check_spec(layers, spec, index)
            kinds.setdefault(spec, []).append(index)
    if not kinds:
        return [], 0
    most = max(map(len, kinds.values()))
    least = min(map(len, kinds.values()))
    num_slots = most if most <= LARGEST_GAP * least else least
    groups = [
        KVGroup(spec, tuple(indices[first : first + num_slots]))
        for spec, indices in kinds.items()
        for first in range(0, len(indices), num_slots)
    ]
    return groups, num_slots


def blocks_for(spec: KVCacheSpec, num_tokens: int, chunk: int) -> int:
    """Most blocks of one group that a sequence of ``num_tokens`` ever holds at once.

    A sliding group holds the window before a step's first token and the step's own tokens, at most
    ``chunk``, plus a block since neither begins at a block's edge.
    """
    whole = -(-num_tokens // spec.block_size)
    if spec.window is None:
        return whole
    return min(whole, -(-(spec.window - 1 + chunk) // spec.block_size) + 1)


def sequence_blocks(groups: Sequence[KVGroup], num_tokens: int, chunk: int) -> int:
    """Most blocks that one sequence of ``num_tokens`` ever holds at once, over all groups."""
    return sum(blocks_for(group.spec, num_tokens, chunk) for group in groups)


def _check_sharing(layers: Sequence[KVCacheSpec], index: int) -> None:
    source = layers[index].shares
    if source is None or not 0 <= source < index or layers[source].kind not in ("full", "sliding"):
        raise PluginError(
            f"attention layer {index} shares the KV of layer {source}; it must be an earlier layer that "
            "stores its own"
        )


def _check_spec(layers: Sequence[KVCacheSpec], spec: KVCacheSpec, index: int) -> None:
    stored = next(other for other in layers if other.kind in ("full", "sliding"))
    if spec.block_size != stored.block_size:
        raise PluginError(
            f"attention layer {index} has blocks of {spec.block_size} tokens and others of "
            f"{stored.block_size}; one model's layers must agree"
        )
    if spec.block_bytes < 1 or (spec.kind == "sliding") != (spec.window is not None):
        raise PluginError(f"attention layer {index} describes its KV wrongly: {spec}")


@dataclass(frozen=True, slots=True)
class _Memory:
    """What bounds the pool, and what gives more of it."""

    what: str
    flag: str


def _settle_context(
    groups: Sequence[KVGroup],
    num_blocks: int,
    chunk: int,
    memory: _Memory,
    model_len: int | None,
    asked: int | None,
    notes: list[str],
) -> int:
    """The context that is served; ``num_blocks`` does not count the null block."""
    wanted = asked or model_len or LEAST_CONTEXT
    fits = _largest_that_fits(groups, num_blocks, chunk, wanted)
    if asked is not None:
        if fits < asked:
            raise OutOfMemory(
                f"--max-model-len {asked} does not fit {memory.what}; the largest that fits is {fits}. "
                f"Ask for that, or give more with {memory.flag}"
            )
        return asked
    if fits < min(LEAST_CONTEXT, wanted):
        accept = f", or accept it with --max-model-len {fits}" if fits > 1 else ""
        raise OutOfMemory(
            f"only {fits} tokens of context fit {memory.what}, and a server needs"
            f" {min(LEAST_CONTEXT, wanted)}. Give more with {memory.flag}{accept}"
        )
    if model_len is None:
        notes.append(f"context {fits}: the model names no limit; --max-model-len sets another")
    elif fits < model_len:
        notes.append(f"context {fits} of the model's {model_len}: one sequence of it fits {memory.what}")
    else:
        notes.append(f"context {fits}: the model's own")
    return fits


def _largest_that_fits(groups: Sequence[KVGroup], num_blocks: int, chunk: int, limit: int) -> int:
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_blocks(groups, middle, chunk) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _size(num_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} bytes"
