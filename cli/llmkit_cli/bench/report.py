"""Figures of a run, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from llmkit_cli.bench.figures import spread
from llmkit_cli.bench.load import Run


def summarize(run: Run) -> dict[str, Any]:
    """Throughput in tokens and requests a second, times in milliseconds."""
    good = [sample for sample in run.samples if sample.error is None]
    gaps = [gap for sample in good for gap in sample.gaps_s]
    per_token = [
        (sample.total_s - sample.first_token_s) / (sample.output_tokens - 1)
        for sample in good
        if sample.first_token_s is not None and sample.output_tokens > 1
    ]
    output_tokens = sum(sample.output_tokens for sample in good)
    prompt_tokens = sum(sample.prompt_tokens for sample in good)
    return {
        "requests": len(run.samples),
        "failed": len(run.samples) - len(good),
        "wall_s": run.wall_s,
        "requests_per_s": len(good) / run.wall_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / run.wall_s,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / run.wall_s,
        "ttft_ms": _milliseconds([s.first_token_s for s in good if s.first_token_s is not None]),
        "itl_ms": _milliseconds(gaps),
        "tpot_ms": _milliseconds(per_token),
        "e2e_ms": _milliseconds([sample.total_s for sample in good]),
        "errors": sorted({sample.error for sample in run.samples if sample.error is not None})[:5],
    }


def print_report(console: Console, figures: dict[str, Any]) -> None:
    """A table of throughput, then one of times."""
    table = Table(title="throughput", show_header=False)
    for name in ("requests", "failed", "prompt_tokens", "output_tokens"):
        table.add_row(name.replace("_", " "), f"{figures[name]}")
    table.add_row("wall", f"{figures['wall_s']:.2f} s")
    table.add_row("requests", f"{figures['requests_per_s']:.2f} /s")
    table.add_row("output tokens", f"{figures['output_tokens_per_s']:.1f} /s")
    table.add_row("all tokens", f"{figures['total_tokens_per_s']:.1f} /s")
    console.print(table)
    times = Table("ms", "mean", "median", "p90", "p99", title="times")
    for key, label in (
        ("ttft_ms", "time to first token"),
        ("itl_ms", "between chunks"),
        ("tpot_ms", "per output token"),
        ("e2e_ms", "whole request"),
    ):
        times_of = figures[key]
        if times_of is not None:
            row = [f"{times_of[name]:.1f}" for name in ("mean", "median", "p90", "p99")]
            times.add_row(label, *row)
    console.print(times)
    for error in figures["errors"]:
        console.print(f"failed: {error}", style="red", markup=False)


def _milliseconds(seconds: Sequence[float]) -> dict[str, float] | None:
    return spread([value * 1e3 for value in seconds]) if seconds else None
