"""What a replay showed: figures, tables and a picture."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llmkit.errors import UsageError
from llmkit_cli.bench.figures import spread
from llmkit_cli.bench.scheduler_replay import Replay, Served

MAX_GROUPS = 20
"""Callers and priorities shown, those with the most requests."""


def summarize(replay: Replay) -> dict[str, Any]:
    """Simulated times in seconds, CPU times of the engine in milliseconds."""
    stats, served = replay.stats, replay.served
    return {
        "requests": len(served),
        "simulated_s": replay.simulated_s,
        "steps": len(replay.step_ms),
        "rows_per_step": statistics.fmean(replay.step_rows),
        "most_rows": max(replay.step_rows),
        "most_waiting": replay.most_waiting,
        "output_tokens_per_s": stats.generated_tokens / replay.simulated_s,
        "step_cpu_ms": spread(replay.step_ms),
        "row_cpu_us": 1e3 * sum(replay.step_ms) / max(1, sum(replay.step_rows)),
        "add_cpu_us": 1e6 * replay.add_s / len(served),
        "prompt_tokens": stats.prefix_queries,
        "cached_tokens": stats.prefix_hits,
        "cache_hit_rate": stats.prefix_hits / max(1, stats.prefix_queries),
        "computed_prompt_tokens": stats.prompt_tokens,
        "preemptions": stats.preemptions,
        "wait_s": spread([entry.started_s - entry.entry.arrival_s for entry in served]),
        "ttft_s": spread([entry.first_token_s - entry.entry.arrival_s for entry in served]),
        "e2e_s": spread([entry.ended_s - entry.entry.arrival_s for entry in served]),
        "callers": _grouped(served, "caller"),
        "priorities": _grouped(served, "priority"),
    }


def print_report(console: Console, figures: dict[str, Any]) -> None:
    """A table of totals, one of spreads, and one of callers and priorities where there are several."""
    totals = Table(title="replay", show_header=False)
    for label, text in (
        ("requests", f"{figures['requests']}"),
        ("simulated time", f"{figures['simulated_s']:.1f} s"),
        ("steps", f"{figures['steps']}"),
        ("requests in a step", f"{figures['rows_per_step']:.1f}, at most {figures['most_rows']}"),
        ("waiting at most", f"{figures['most_waiting']}"),
        ("output tokens", f"{figures['output_tokens_per_s']:.1f} /s"),
        ("prompt tokens cached", f"{figures['cache_hit_rate']:.1%} of {figures['prompt_tokens']}"),
        ("preemptions", f"{figures['preemptions']}"),
        ("engine CPU a request in a step", f"{figures['row_cpu_us']:.2f} us"),
        ("engine CPU to queue a request", f"{figures['add_cpu_us']:.2f} us"),
    ):
        totals.add_row(label, text)
    console.print(totals)
    spreads = Table("", "mean", "median", "p90", "p99", "max")
    for key, label in (
        ("step_cpu_ms", "engine CPU a step, ms"),
        ("wait_s", "wait for the first step, s"),
        ("ttft_s", "first token, s"),
        ("e2e_s", "whole request, s"),
    ):
        values = figures[key]
        spreads.add_row(label, *(f"{values[name]:.2f}" for name in ("mean", "median", "p90", "p99", "max")))
    console.print(spreads)
    for key, label in (("callers", "caller"), ("priorities", "priority")):
        if len(figures[key]) > 1:
            table = Table(label, "requests", "output tokens", "median wait, s", "p99 wait, s")
            for name, group in figures[key].items():
                wait = group["wait_s"]
                cells = (f"{group['requests']}", f"{group['output_tokens']}")
                table.add_row(name, *cells, f"{wait['median']:.2f}", f"{wait['p99']:.2f}")
            console.print(table)


def plot(replay: Replay, path: Path) -> None:
    """A PNG of the course of the replay: queue, blocks, CPU a step, waiting times.

    :raises UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'llmkit[plot]'") from error
    points = replay.course.points
    times = [point.at_s for point in points]
    figure = Figure(figsize=(11, 7), layout="constrained")
    (queue, blocks), (cpu, waits) = figure.subplots(2, 2)
    queue.plot(times, [point.waiting for point in points], label="waiting")
    queue.plot(times, [point.running for point in points], label="running")
    queue.set(xlabel="simulated time, s", ylabel="requests", yscale="symlog")
    queue.legend()
    blocks.plot(times, [100 * point.blocks_held / replay.stats.blocks_total for point in points])
    blocks.set(xlabel="simulated time, s", ylabel="KV blocks held, %", ylim=(0, 105))
    cpu.plot([point.running for point in points], [point.cpu_ms for point in points], ".", markersize=2)
    cpu.set(xlabel="requests running", ylabel="engine CPU a step, ms", ylim=(0, None))
    ordered = sorted(entry.started_s - entry.entry.arrival_s for entry in replay.served)
    shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
    waits.plot(ordered, shares, drawstyle="steps-post")
    waits.set(xlabel="wait for the first step, s", ylabel="requests, %", ylim=(0, 105))
    for axes in (queue, blocks, cpu, waits):
        axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=110)


def _grouped(served: Sequence[Served], field: str) -> dict[str, Any]:
    groups: dict[str, list[Served]] = defaultdict(list)
    for entry in served:
        groups[str(getattr(entry.entry, field))].append(entry)
    largest = sorted(groups, key=lambda name: (-len(groups[name]), name))[:MAX_GROUPS]
    return {
        name: {
            "requests": len(groups[name]),
            "output_tokens": sum(entry.entry.output_tokens for entry in groups[name]),
            "wait_s": spread([entry.started_s - entry.entry.arrival_s for entry in groups[name]]),
        }
        for name in sorted(largest)
    }
