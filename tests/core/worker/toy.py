"""A tiny model, a naive attention backend and their registry: the contracts in their plainest form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from llmkit.config import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from llmkit.contracts import (
    AttentionSpec,
    BackendSpec,
    BatchLayout,
    CheckpointInfo,
    ExecutorSpec,
    KVCacheSpec,
    KVGroup,
    KVLayout,
    KVMemory,
    LayerInputs,
    ModelFiles,
    ModelInput,
    ModelParts,
    ModelSpec,
    ModelState,
    StepContext,
    WeightRef,
    WorkerReport,
)
from llmkit.nn import TensorRef
from llmkit.registry import Entry, Registry

VOCAB, HIDDEN, HEADS, SIZE = 97, 32, 2, 16
WINDOW = 12
NAMES = ("embed", *(f"{layer}.{part}" for layer in range(4) for part in "qkvo"))


class ToyLoader:
    """Weights from a seed."""

    def __init__(self, spec: Any) -> None:
        self._seed = spec.seed

    def info(self) -> CheckpointInfo:
        return INFO

    def weights(self) -> Iterable[WeightRef]:
        made = torch.Generator().manual_seed(self._seed)
        for name in NAMES:
            rows = VOCAB if name == "embed" else HIDDEN
            yield TensorRef(name, torch.randn(rows, HIDDEN, generator=made) * 0.4)


class ToyModel:
    """Four attention layers: full, sliding, one that shares the first's KV, and sliding again."""

    vocab_size = VOCAB

    def __init__(self, spec: ModelSpec, parts: ModelParts) -> None:
        plain = {"scale": SIZE**-0.5, "num_heads": HEADS, "num_kv_heads": HEADS}
        full = AttentionSpec(head_size=SIZE, head_size_v=SIZE, **plain)
        sliding = AttentionSpec(head_size=SIZE, head_size_v=SIZE, window=WINDOW, **plain)
        shared = AttentionSpec(head_size=SIZE, head_size_v=SIZE, shares=0, **plain)
        self.attention = (full, sliding, shared, sliding)
        self._weights: dict[str, Tensor] = {}
        self.contexts: list[StepContext] = []

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._weights.values())

    def load(self, weights: Iterable[WeightRef], on_weight: Callable[[WeightRef], None]) -> None:
        for ref in weights:
            self._weights[ref.name] = ref.dense(torch.float32)
            on_weight(ref)

    def forward(self, inputs: ModelInput, ctx: StepContext, state: ModelState | None) -> ModelState:
        assert inputs.token_ids is not None
        self.contexts = [*self.contexts[-8:], ctx]
        angle = inputs.positions.unsqueeze(1) / torch.arange(1, HIDDEN + 1)
        x = self._weights["embed"][inputs.token_ids] + 0.5 * torch.sin(angle)
        for layer, spec in enumerate(self.attention):
            q, k, v = (self._times(f"{layer}.{part}", x).view(-1, HEADS, SIZE) for part in "qkv")
            out = torch.empty_like(q)
            own = spec.shares is None
            ctx.backend.attend(LayerInputs(layer, q, k if own else None, v if own else None), ctx.plan, out)
            x = torch.tanh(x + self._times(f"{layer}.o", out.reshape(-1, HIDDEN)))
        return ModelState(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._times("embed", hidden) * 2

    def _times(self, name: str, x: Tensor) -> Tensor:
        """A row at a time: row-invariant by construction."""
        return torch.stack([self._weights[name] @ row for row in x])


class ToyPlan:
    layout: BatchLayout

    def update(self, layout: BatchLayout) -> None:
        self.layout = layout


class ToyBackend:
    """A block is K and V, each [block_size, heads, size] float32; attends a token at a time."""

    row_invariant = True
    graph_support = "none"
    fused_rope = False

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._views: list[Tensor] = []
        self._groups: list[int] = []

    def kv_cache_spec(self, layer: int) -> KVCacheSpec:
        spec, size = self._spec.layers[layer], self._spec.block_size
        if spec.shares is not None:
            return KVCacheSpec("shared", size, 0, "toy", shares=spec.shares)
        kind = "full" if spec.window is None else "sliding"
        return KVCacheSpec(kind, size, size * HEADS * SIZE * 2 * 4, "toy", window=spec.window)

    def bind(self, memory: KVMemory) -> None:
        shape = (memory.num_blocks, 2, self._spec.block_size, HEADS, SIZE)
        for layer in range(len(self._spec.layers)):
            self._views.append(memory.layer(layer).view(torch.float32).view(shape))
            self._groups.append(memory.group(layer))

    def make_plan(self, max_tokens: int, max_seqs: int, max_blocks: int) -> ToyPlan:
        return ToyPlan()

    def attend(self, inputs: LayerInputs, plan: ToyPlan, out: Tensor) -> None:
        layout, spec = plan.layout, self._spec.layers[inputs.layer]
        group, view, size = self._groups[inputs.layer], self._views[inputs.layer], self._spec.block_size
        if inputs.k is not None and inputs.v is not None:
            for token, slot in enumerate(layout.slot_mapping[group].tolist()):
                if slot >= 0:
                    view[slot // size, 0, slot % size] = inputs.k[token]
                    view[slot // size, 1, slot % size] = inputs.v[token]
        for row in range(layout.num_rows):
            first, last = layout.query_start[row : row + 2].tolist()
            table = torch.from_numpy(layout.block_tables[group][row].astype("int64"))
            for token in range(first, last):
                position = int(layout.seq_lens[row]) - (last - token)
                start = max(0, position + 1 - (spec.window or math.inf))
                places = torch.arange(int(start), position + 1)
                blocks = table[places // size]
                keys, values = view[blocks, 0, places % size], view[blocks, 1, places % size]
                scores = (keys * inputs.q[token]).sum(-1) * spec.scale
                weights = torch.softmax(scores, dim=0)
                out[token] = (weights.unsqueeze(-1) * values).sum(0)


class ToyLinear:
    """Stands where a linear method is chosen; the toy model multiplies by itself."""

    row_invariant = True


INFO = CheckpointInfo("ToyForCausalLM", {"max_position_embeddings": 256, "num_hidden_layers": 4})


def registry() -> Registry:
    made = Registry()
    made.add(
        [
            Entry("loader", "toy", lambda spec, options: ToyLoader(spec), "toy"),
            Entry("linear", "toy", lambda env, options: ToyLinear(), "toy"),
            Entry("model", "toy", lambda spec, parts, options: ToyModel(spec, parts), "toy"),
            Entry("attention", "toy", lambda spec, options: ToyBackend(spec), "toy"),
        ]
    )
    return made


def toy_spec(
    *,
    model: ModelConfig | None = None,
    cache: CacheConfig | None = None,
    scheduler: SchedulerConfig | None = None,
    components: Registry | None = None,
) -> ExecutorSpec:
    """A deterministic toy of 8 rows, 64 tokens a step and blocks of 8 tokens.

    One thread: on a busy machine every tiny product would wait for a second one.
    """
    config = Config(
        model=model or ModelConfig(model="toy", deterministic=True),
        cache=cache or CacheConfig(block_size=8, kv_cache_memory_bytes=1 << 20),
        scheduler=scheduler or SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        parallel=ParallelConfig(threads=1),
    )
    return ExecutorSpec(config, ModelFiles("/toy", "toy", "1"), INFO, components or registry())


def layout_for(report: WorkerReport, num_blocks: int) -> KVLayout:
    """Layers of equal specs in a group each."""
    kinds = {spec: [] for spec in report.layers if spec.block_bytes}
    for layer, spec in enumerate(report.layers):
        if spec.block_bytes:
            kinds[spec].append(layer)
    groups = tuple(KVGroup(spec, tuple(layers)) for spec, layers in kinds.items())
    slots = max(len(group.layers) for group in groups)
    return KVLayout(groups, num_blocks, slots, max(group.spec.block_bytes for group in groups))
