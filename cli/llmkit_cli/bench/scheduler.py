"""``llmkit bench scheduler``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from llmkit.config import CacheConfig, Config, SchedulerConfig, sources
from llmkit.engine.process import calm_collector
from llmkit.errors import UsageError
from llmkit_cli.arguments import configurable
from llmkit_cli.bench.figures import STDOUT, check_writable, write_json
from llmkit_cli.bench.scheduler_engine import StepCost, build_simulated
from llmkit_cli.bench.scheduler_replay import replay
from llmkit_cli.bench.scheduler_report import plot, print_report, summarize
from llmkit_cli.bench.scheduler_trace import MAX_REQUESTS, Poisson, TraceRequest, longest, read_trace

CONCERNED = (
    "scheduler.scheduler",
    "scheduler.scheduling_policy",
    "scheduler.max_num_seqs",
    "scheduler.max_num_batched_tokens",
    "cache.block_size",
    "cache.num_gpu_blocks_override",
    "cache.enable_prefix_caching",
)
"""Settings that a replay depends on, besides the plugins. Others may be in a server's ``--config``: what the
front, a memory or a model would do with them has no place here."""


@configurable(*CONCERNED, "plugins")
def bench_scheduler(
    loaded: sources.Loaded,
    trace: Annotated[
        Path | None, typer.Option(help="JSONL to replay; default: a Poisson load of the figures below")
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, max=MAX_REQUESTS, help="requests to send")] = 1000,
    request_rate: Annotated[
        float, typer.Option(min=0, max=1e6, help="requests a second; 0: all at once")
    ] = 100.0,
    input_len: Annotated[int, typer.Option(min=1, max=1 << 20, help="mean prompt tokens")] = 256,
    output_len: Annotated[int, typer.Option(min=1, max=1 << 20, help="mean tokens to generate")] = 64,
    prefix_len: Annotated[int, typer.Option(min=0, help="prompt tokens shared by many requests")] = 0,
    prefixes: Annotated[int, typer.Option(min=1, max=1 << 20, help="how many such beginnings")] = 1,
    callers: Annotated[int, typer.Option(min=1, max=1 << 20, help="who send the requests")] = 1,
    seed: Annotated[int, typer.Option(help="of the load")] = 0,
    step_ms: Annotated[float, typer.Option(min=0, max=1e6, help="the model's time for any step")] = 10.0,
    token_us: Annotated[float, typer.Option(min=0, max=1e6, help="and for each token in it")] = 20.0,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="draw the course as a PNG here")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the figures here, - for stdout")
    ] = None,
) -> None:
    """Replay a load through the real scheduler and block pool, with a clock in place of the model."""
    check_writable("--json", json_file)
    check_writable("--plot", plot_file)
    if step_ms == token_us == 0:
        raise UsageError("--step-ms and --token-us are 0; one must be above 0, for time to pass")
    if trace is not None:
        load = read_trace(trace)
    elif prefix_len >= input_len:
        raise UsageError(f"--prefix-len is {prefix_len}; it must be below --input-len, {input_len}")
    else:
        poisson = Poisson(
            num_prompts, request_rate, input_len, output_len, prefix_len, prefixes, callers, seed
        )
        load = poisson.trace()
    config = _with_blocks(_concerned(loaded.config), load)
    cost = StepCost(step_ms * 1e-3, token_us * 1e-6)
    core, executor = build_simulated(config, cost, context=longest(load))
    calm_collector()  # as the engine process does
    result = replay(core, executor, load)
    core.shutdown()
    figures = summarize(result)
    figures["policy"] = config.scheduler.scheduling_policy
    figures["blocks"] = config.cache.num_gpu_blocks_override
    if plot_file is not None:
        plot(result, plot_file)
    write_json(figures, json_file)
    if json_file != STDOUT:
        print_report(Console(), figures)


def _concerned(config: Config) -> Config:
    """Of a server's configuration what a replay depends on."""
    given: dict[str, dict[str, Any]] = {"scheduler": {}, "cache": {}}
    for path in CONCERNED:
        section, name = path.split(".")
        given[section][name] = getattr(getattr(config, section), name)
    return Config(
        scheduler=SchedulerConfig(**given["scheduler"]),
        cache=CacheConfig(**given["cache"]),
        plugins=config.plugins,
    )


def _with_blocks(config: Config, load: list[TraceRequest]) -> Config:
    """With a number of KV blocks: unless one is asked for, enough for the mean request in every seat.

    :raises UsageError: the longest request does not fit those that are asked for.
    """
    cache, most = config.cache, longest(load)
    if cache.num_gpu_blocks_override is not None:
        least = 1 + -(-most // cache.block_size)
        if cache.num_gpu_blocks_override < least:
            raise UsageError(
                f"--num-gpu-blocks-override {cache.num_gpu_blocks_override}: the longest request has {most}"
                f" tokens, prompt and answer; they take at least {least} blocks of {cache.block_size} tokens"
            )
        return config
    mean = sum(entry.prompt_tokens + entry.output_tokens for entry in load) / len(load)
    tokens = max(config.scheduler.max_num_seqs * mean, most + config.scheduler.max_num_batched_tokens)
    blocks = 2 + int(tokens) // cache.block_size
    return replace(config, cache=replace(cache, num_gpu_blocks_override=blocks))
