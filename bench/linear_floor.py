"""Milliseconds of one step's linear layers of SmolLM2-135M as F.linear in fp32, at M rows; median of many.

Every layer has its own weights, as in the model, so that they stream from memory.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

LAYERS, HIDDEN, FFN, QKV, VOCAB = 30, 576, 1536, 576 + 2 * 192, 49152


def main(rows: int, repeats: int = 9) -> float:
    shapes = [(QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN)] * LAYERS + [(VOCAB, HIDDEN)]
    weights = [torch.randn(shape) for shape in shapes]
    inputs = {width: torch.randn(rows, width) for width in (HIDDEN, FFN)}
    times = []
    with torch.inference_mode():
        for _ in range(repeats):
            began = time.perf_counter()
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)
            times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[2:])


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
