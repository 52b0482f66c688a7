"""Where a decode step's time goes, from the linear layers up to HTTP; medians in milliseconds.

Three rings, each around the one before: the engine in this process with every component timed, the engine
process behind its sockets (the difference is IPC), and the server (the difference is HTTP).

    python bench/step_breakdown.py [--rows 1,8] [--steps 48] [serve arguments ...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx

from llmkit.assemble.engine import build_engine
from llmkit.assemble.front import build_front
from llmkit.assemble.model import open_model
from llmkit.config import Config, flags, sources
from llmkit.contracts import AddRequest, SamplingParams, Tokens
from llmkit.plugins import load_plugins
from llmkit_cli.bench.load import Load, run_load
from llmkit_cli.bench.prompts import make_prompts

PROMPT_TOKENS = 128
PORT = 8124


class Clock:
    """Seconds by name, of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed


class TimedComponents:
    """A registry whose linear method and attention backend are timed."""

    def __init__(self, registry: Any, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def create(self, kind: str, name: str, *specs: Any) -> Any:
        made = self._registry.create(kind, name, *specs)
        if kind == "linear":
            made.apply = self._clock.wrap("linear", made.apply)
        elif kind == "attention":
            made.attend = self._clock.wrap("attention", made.attend)
        return made


def in_process(config: Config, rows: int, steps: int) -> dict[str, float]:
    clock = Clock()
    plugins = load_plugins(config.plugins, flags.needed(config))
    opened = open_model(config, plugins.registry, _ignore)
    components = TimedComponents(plugins.registry, clock)
    core = build_engine(config, opened.files, opened.info, components, _ignore).core  # type: ignore[arg-type]
    runner = core._executor._worker.runner
    runner._model.forward = clock.wrap("forward", runner._model.forward)
    runner._model.logits = clock.wrap("logits", runner._model.logits)
    runner.sampler.sample = clock.wrap("sampler", runner.sampler.sample)
    core._executor.execute = clock.wrap("execute", core._executor.execute)
    core._executor.sample = clock.wrap("sample", core._executor.sample)
    for row in range(rows):
        core.add(_request(row, steps))
    samples: list[dict[str, float]] = []
    while core.has_work:
        clock.seconds.clear()
        began = time.perf_counter()
        outputs = core.step()
        clock.seconds["step"] = time.perf_counter() - began
        if outputs is not None and len(outputs.outputs) == rows:
            samples.append(dict(clock.seconds))
    core.shutdown()
    middle = samples[2:-1]
    mean = {name: statistics.median(sample.get(name, 0.0) for sample in middle) for name in middle[0]}
    model = mean["forward"] + mean["logits"]
    return {
        "linear": mean["linear"],
        "attention": mean["attention"],
        "other model": model - mean["linear"] - mean["attention"],
        "sampler": mean["sampler"],
        "batch": mean["execute"] + mean["sample"] - model - mean["sampler"],
        "scheduler": mean["step"] - mean["execute"] - mean["sample"],
        "step": mean["step"],
    }


async def behind_sockets(config: Config, rows: int, steps: int) -> float:
    plugins = load_plugins(config.plugins, flags.needed(config))
    front = build_front(config, plugins)
    await front.start()
    try:
        while front.state.phase == "starting":
            await asyncio.sleep(0.05)
        params = SamplingParams(max_tokens=steps, temperature=0.0, ignore_eos=True)

        async def one(row: int) -> list[float]:
            stamps = []
            generation = await front.services.generator.submit(_prompt(row), params)
            async for _, event in generation:
                if isinstance(event, Tokens):
                    stamps.append(time.perf_counter())
            return stamps

        stamps = await asyncio.gather(*(one(row) for row in range(rows)))
        return _median_gap(stamps)
    finally:
        await front.stop()


def over_http(model: str, serve_arguments: list[str], rows: int, steps: int) -> float:
    url = f"http://127.0.0.1:{PORT}"
    command = [sys.executable, "-m", "llmkit_cli.main", "serve", model, "--port", str(PORT), *serve_arguments]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            try:
                if httpx.get(url + "/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        prompts = make_prompts(rows, PROMPT_TOKENS, 0, 7, None)
        load = Load(url, model, False, steps, True, 0.0, rows, None, None, 0, 300.0)
        run = asyncio.run(run_load(load, prompts))
        gaps = [gap for sample in run.samples for gap in sample.gaps_s[rows + 2 : -2]]
        return statistics.median(gaps)
    finally:
        server.terminate()
        server.wait(60)


def _request(row: int, steps: int) -> AddRequest:
    params = SamplingParams(max_tokens=steps, temperature=0.0, ignore_eos=True)
    return AddRequest(f"r{row}", _prompt(row), params, seed=row, max_tokens=steps)


def _prompt(row: int) -> list[int]:
    return [1000 + (37 * row + 11 * place) % 20000 for place in range(PROMPT_TOKENS)]


def _median_gap(stamps: list[list[float]]) -> float:
    settled = [row[len(stamps) + 2 :] for row in stamps]
    return statistics.median(after - before for row in settled for before, after in pairwise(row))


def _ignore(phase: str, fraction: float) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--model", default="smollm2-135m")
    arguments, serve_arguments = parser.parse_known_args()
    config = sources.load({"model": arguments.model}, os.environ).config
    columns = ("linear", "attention", "other model", "sampler", "batch", "scheduler", "IPC", "HTTP", "all")
    print("rows " + " ".join(f"{name:>12s}" for name in columns))
    for rows in (int(word) for word in arguments.rows.split(",")):
        inside = in_process(config, rows, arguments.steps)
        sockets = asyncio.run(behind_sockets(config, rows, arguments.steps))
        http = over_http(arguments.model, serve_arguments, rows, arguments.steps)
        inside |= {"IPC": sockets - inside["step"], "HTTP": http - sockets, "all": http}
        print(f"{rows:4d} " + " ".join(f"{1e3 * inside[name]:12.2f}" for name in columns))


if __name__ == "__main__":
    main()
