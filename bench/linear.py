"""Milliseconds of one step's linear layers, by method, at SmolLM2-135M's sizes.

``python bench/linear.py`` prints a table: every usable method beside ``F.linear``, minima of one interleaved
run, since machines differ and drift. ``--threads`` and ``--rows`` change the case.
"""

from __future__ import annotations

import argparse
import time

from llmkit.worker import limit_spinning

limit_spinning()  # as the server does, before torch loads

import torch  # noqa: E402
from smollm2 import HEAD, LAYERS, LINEARS  # noqa: E402

from llmkit.config import PluginConfig  # noqa: E402
from llmkit.contracts import LinearEnv, LinearMethod, LinearSpec  # noqa: E402
from llmkit.nn import TensorRef  # noqa: E402
from llmkit.plugins import load_plugins  # noqa: E402

ROUNDS = 7


class Stack:
    """All linear layers of a model, filled with noise."""

    def __init__(self, method: LinearMethod) -> None:
        self._method = method
        shapes = [shape for _ in range(LAYERS) for shape in LINEARS.values()]
        self._layers = [(size[0], self._layer(*size)) for size in shapes]
        self._head = self._layer(*HEAD)
        self.nbytes = sum(method.nbytes(weights) for _, weights in self._layers) + method.nbytes(self._head)

    def _layer(self, in_features: int, out_features: int) -> object:
        weights = self._method.create(LinearSpec("layer", in_features, (out_features,)))
        dense = torch.randn(out_features, in_features) * in_features**-0.5
        self._method.load(weights, 0, TensorRef("weight", dense))
        self._method.finish(weights)
        return weights

    def seconds(self, inputs: dict[int, torch.Tensor], head_rows: int) -> tuple[float, float]:
        """Of the layers, and of the head on the first rows."""
        start = time.perf_counter()
        for width, weights in self._layers:
            self._method.apply(weights, inputs[width])
        middle = time.perf_counter()
        self._method.apply(self._head, inputs[HEAD[0]][:head_rows])
        return middle - start, time.perf_counter() - middle


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--deterministic", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    env = LinearEnv("cpu", "float32", "dense", args.deterministic, args.threads)
    registry = load_plugins(PluginConfig()).registry
    names = registry.usable("linear", env)
    stacks = {name: Stack(registry.create("linear", name, env)) for name in names}
    print(f"{args.threads} threads; layers + head, ms; weights read a step: ", end="")
    print(", ".join(f"{name} {stack.nbytes / 1e6:.0f} MB" for name, stack in stacks.items()))
    print("rows".ljust(8), *(name.rjust(18) for name in names))
    for rows in args.rows:
        inputs = {width: torch.randn(rows, width) for width, _ in LINEARS.values()}
        best = dict.fromkeys(names, (1e9, 1e9))
        for _ in range(ROUNDS):
            for name, stack in stacks.items():
                layers, head = stack.seconds(inputs, rows)
                best[name] = (min(best[name][0], layers), min(best[name][1], head))
        cells = (f"{layers * 1e3:.1f} + {head * 1e3:.1f}".rjust(18) for layers, head in best.values())
        print(str(rows).ljust(8), *cells)


if __name__ == "__main__":
    main()
