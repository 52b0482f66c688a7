"""Milliseconds of one step's linear layers of SmolLM2-135M as F.linear in fp32, at M rows; median of many.

Every layer has its own weights, as in the model, so that they stream from memory.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from smollm2 import HEAD, LAYERS, LINEARS


def main(rows: int, repeats: int = 9) -> float:
    shapes = [*LINEARS.values()] * LAYERS + [HEAD]
    weights = [torch.randn(out_features, in_features) for in_features, out_features in shapes]
    inputs = {in_features: torch.randn(rows, in_features) for in_features, _ in shapes}
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
