"""Runs a model implementation over real parts, with a KV pool and plans made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from llmkit.contracts import (
    AttentionBackend,
    BackendSpec,
    BatchLayout,
    CheckpointInfo,
    LinearEnv,
    LinearMethod,
    Model,
    ModelFiles,
    ModelInput,
    ModelParts,
    ModelSpec,
    OpsEnv,
    StepContext,
    WeightRef,
)
from llmkit.nn import TensorRef, torch_ops
from llmkit.testing import tiny
from llmkit_cpu_paged.backend import PagedCpuBackend
from llmkit_cpu_paged.linear import OneDnnPacked
from llmkit_models.plugin import make_native, make_transformers
from llmkit_torch_reference.attention import ReferenceBackend
from llmkit_torch_reference.linear import RowTiledLinear, TorchLinear

MAKERS = {"native": make_native, "transformers": make_transformers}


@dataclass(frozen=True)
class Parts:
    """Which attention backend and linear method a model runs over."""

    attention: Callable[[BackendSpec], AttentionBackend]
    linear: Callable[[LinearEnv], LinearMethod]
    block_size: int


PARTS = {
    "reference": Parts(ReferenceBackend, TorchLinear, 8),
    "paged-cpu": Parts(PagedCpuBackend, OneDnnPacked, 16),
}
DETERMINISTIC = Parts(ReferenceBackend, RowTiledLinear, 8)


def checkpoint_refs(directory: Path) -> Iterator[WeightRef]:
    """Every tensor of a directory's safetensors files."""
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  safe_open is no mapping
                yield TensorRef(name, file.get_tensor(name))


def model_spec(config: dict[str, Any], directory: Path = Path(), **changes: Any) -> ModelSpec:
    num_layers = int(config.get("num_hidden_layers") or config["n_layer"])
    fields: dict[str, Any] = {
        "info": CheckpointInfo(config["architectures"][0], config),
        "files": ModelFiles(str(directory), "tiny", "tiny"),
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": tiny.MAX_POSITION,
        "layers": (0, num_layers),
    }
    return ModelSpec(**fields | changes)


def model_parts(parts: Parts = PARTS["reference"]) -> ModelParts:
    deterministic = parts is DETERMINISTIC
    linear = parts.linear(LinearEnv("cpu", "float32", "dense", deterministic))
    return ModelParts(linear, torch_ops(OpsEnv("cpu", "float32", deterministic)))


def load(
    implementation: str,
    directory: Path,
    *,
    parts: Parts = PARTS["reference"],
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Model:
    """A tiny checkpoint through one implementation; ``config`` stands in for its own."""
    spec = model_spec(config or tiny.config_of(directory), directory, **changes)
    model = MAKERS[implementation](spec, model_parts(parts), None)
    model.load(checkpoint_refs(directory), lambda ref: None)
    return model


class Memory:
    """A pool in which every layer has its own bytes and its own group."""

    def __init__(self, block_bytes: Sequence[int], num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._layers = [torch.zeros(num_blocks, size, dtype=torch.uint8) for size in block_bytes]

    def layer(self, index: int) -> Tensor:
        return self._layers[index]

    def group(self, index: int) -> int:
        return index


@dataclass
class Row:
    """One sequence: its ids, and how many of them are computed."""

    ids: list[int]
    blocks: list[int] = field(default_factory=list)
    done: int = 0


class Runner:
    """Steps of any rows and chunks through one model; blocks are handed out shuffled."""

    def __init__(
        self,
        model: Model,
        parts: Parts = PARTS["reference"],
        *,
        num_blocks: int = 128,
        seed: int = 0,
        tokenwise: bool = False,
    ) -> None:
        """``tokenwise`` makes a row of every token, so that its attention has the same shapes in every
        chunking and ``reference`` becomes row-invariant."""
        self.model = model
        self._tokenwise = tokenwise
        self._block_size = parts.block_size
        self.backend = parts.attention(
            BackendSpec(tuple(model.attention), "float32", "auto", parts.block_size, "cpu", False)
        )
        sizes = [self.backend.kv_cache_spec(layer).block_bytes for layer in range(len(model.attention))]
        self.backend.bind(Memory(sizes, num_blocks))
        self.plan = self.backend.make_plan(1024, 16, num_blocks)
        order = np.random.default_rng(seed).permutation(np.arange(1, num_blocks))
        self._free = [int(block) for block in order]

    def step(self, work: Sequence[tuple[Row, int]]) -> list[Tensor]:
        """Compute so many next tokens of each row; logits ``[tokens, vocab]`` of each."""
        work = sorted(work, key=lambda item: item[1])
        for row, count in work:
            while len(row.blocks) * self._block_size < row.done + count:
                row.blocks.append(self._free.pop())
        places = [np.arange(row.done, row.done + count) for row, count in work]
        ids = [token for row, count in work for token in row.ids[row.done : row.done + count]]
        shown = [
            (_up_to(row, place), 1) for (row, _), some in zip(work, places, strict=True) for place in some
        ]
        if self._tokenwise:
            self.plan.update(self._layout(shown, [np.array([row.done]) for row, _ in shown]))
        else:
            self.plan.update(self._layout(work, places))
        inputs = ModelInput(torch.tensor(ids), torch.from_numpy(np.concatenate(places)))
        state = self.model.forward(inputs, StepContext(self.backend, self.plan), None)
        logits = self.model.logits(state.hidden)
        for row, count in work:
            row.done += count
        return list(torch.split(logits, [count for _, count in work]))

    def whole(self, ids: Sequence[int], chunks: Sequence[int]) -> Tensor:
        """Logits of every token of one sequence, computed in these chunks."""
        assert sum(chunks) == len(ids)
        row = Row(list(ids))
        return torch.cat([self.step([(row, count)])[0] for count in chunks])

    def _layout(self, work: Sequence[tuple[Row, int]], places: list[Any]) -> BatchLayout:
        counts = [count for _, count in work]
        longest = max(len(row.blocks) for row, _ in work)
        table = np.zeros((len(work), longest), np.int32)
        for index, (row, _) in enumerate(work):
            table[index, : len(row.blocks)] = row.blocks
        size = self._block_size
        slots = np.concatenate(
            [
                np.array(row.blocks)[place // size] * size + place % size
                for (row, _), place in zip(work, places, strict=True)
            ]
        ).astype(np.int32)
        groups = len(self.model.attention)
        return BatchLayout(
            num_rows=len(work),
            num_tokens=sum(counts),
            query_start=np.cumsum([0, *counts]).astype(np.int32),
            seq_lens=np.array([row.done + count for row, count in work], np.int32),
            block_tables=(table,) * groups,
            slot_mapping=(slots,) * groups,
            num_decode_rows=sum(count == 1 for count in counts),
            max_query_len=max(counts),
            max_seq_len=max(row.done + count for row, count in work),
        )


def _up_to(row: Row, place: int) -> Row:
    """The sequence as its token at ``place`` sees it."""
    return Row(row.ids, row.blocks, int(place))
