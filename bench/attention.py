"""Milliseconds of one step's attention layers, by backend, at SmolLM2-135M's sizes.

``python bench/attention.py`` prints a table of decode and prefill steps. Every layer has its own cache, as in
a server, so that memory is read as there.
"""

from __future__ import annotations

import argparse
import time

from llmkit.worker import limit_spinning

limit_spinning()  # as the server does, before torch loads

import numpy as np  # noqa: E402
import torch  # noqa: E402
from smollm2 import ATTENTION, LAYERS  # noqa: E402

from llmkit.config import PluginConfig  # noqa: E402
from llmkit.contracts import (  # noqa: E402
    AttentionBackend,
    BackendSpec,
    BatchLayout,
    LayerInputs,
)
from llmkit.plugins import load_plugins  # noqa: E402
from llmkit.testing.attention_driver import Pool  # noqa: E402

CASES = {
    "decode 1 at 256": (1, 256, 1),
    "decode 1 at 2048": (1, 2048, 1),
    "decode 8 at 256": (8, 256, 1),
    "decode 32 at 256": (32, 256, 1),
    "prefill 128": (1, 128, 128),
    "prefill 512": (1, 512, 512),
}
"""Sequences, their length with this step's tokens, and tokens of each in the step."""
ROUNDS = 5
BLOCK_SIZE = 16


class Step:
    """One step over and over: the same tokens over the same blocks, which are out of order."""

    def __init__(self, backend: AttentionBackend, rows: int, length: int, new: int) -> None:
        self._backend = backend
        blocks = -(-length // BLOCK_SIZE)
        specs = [backend.kv_cache_spec(layer) for layer in range(LAYERS)]
        backend.bind(Pool(specs, rows * blocks + 1, "cpu", fill=0))
        order = np.random.default_rng(0).permutation(rows * blocks) + 1
        table = order.reshape(rows, blocks).astype(np.int32)
        positions = np.tile(np.arange(length - new, length), rows)
        owners = np.repeat(np.arange(rows), new)
        slots = table[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        self._layout = BatchLayout(
            num_rows=rows,
            num_tokens=rows * new,
            query_start=np.arange(0, rows * new + 1, new, dtype=np.int32),
            seq_lens=np.full(rows, length, np.int32),
            block_tables=(table,),
            slot_mapping=(slots.astype(np.int32),),
            num_decode_rows=rows if new == 1 else 0,
            max_query_len=new,
            max_seq_len=length,
        )
        self._plan = backend.make_plan(rows * new, rows, blocks)
        self._q = torch.randn(rows * new, ATTENTION.num_heads, ATTENTION.head_size)
        self._k, self._v = torch.randn(2, rows * new, ATTENTION.num_kv_heads, ATTENTION.head_size)
        self._out = torch.empty_like(self._q)

    def seconds(self) -> float:
        start = time.perf_counter()
        self._plan.update(self._layout)
        for layer in range(LAYERS):
            self._backend.attend(LayerInputs(layer, self._q, self._k, self._v), self._plan, self._out)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kv-cache-dtype", default="auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    spec = BackendSpec(
        (ATTENTION,) * LAYERS, "float32", args.kv_cache_dtype, BLOCK_SIZE, "cpu", False, args.threads
    )
    registry = load_plugins(PluginConfig()).registry
    names = registry.usable("attention", spec)
    print(f"{args.threads} threads; ms of {LAYERS} layers")
    print("step".ljust(20), *(name.rjust(12) for name in names))
    for case, (rows, length, new) in CASES.items():
        steps = {name: Step(registry.create("attention", name, spec), rows, length, new) for name in names}
        best = {name: min(step.seconds() for _ in range(ROUNDS)) * 1e3 for name, step in steps.items()}
        print(case.ljust(20), *(f"{ms:.2f}".rjust(12) for ms in best.values()))


if __name__ == "__main__":
    main()
