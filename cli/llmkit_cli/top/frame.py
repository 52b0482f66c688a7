"""Figures as a frame of text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from llmkit_cli.top.figures import SHARES, Figures

BAR_WIDTH = 30


def frame(url: str, figures: Figures, trouble: str | None = None) -> RenderableType:
    """``trouble``: why the figures are those of a while ago."""
    state = "  asleep" if figures.asleep else ""
    parts: list[RenderableType] = [
        Text(f"{', '.join(figures.models) or 'no name'}  {url}{state}", style="bold"),
        _state(figures),
        _latencies(figures),
    ]
    if any(not latency.recent for latency in figures.latencies.values()):
        parts.append(Text("* since the server started: nothing came meanwhile", style="dim"))
    if trouble is not None:
        parts.append(Text(trouble, style="bold red"))
    return Group(*parts)


def _state(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    usage = figures.kv_usage or 0.0
    bar = ProgressBar(total=1.0, completed=min(usage, 1.0), width=BAR_WIDTH)
    table.add_row("requests", f"{figures.running:g} running, {figures.waiting:g} waiting")
    table.add_row("KV cache", _percent(figures.kv_usage), bar)
    table.add_row("prefix cache hits", _percent(figures.hit_rate))
    if figures.accepted is not None:
        table.add_row("accepted drafts", _percent(figures.accepted))
    table.add_row(
        "tokens a second",
        f"{figures.generation_tokens:.1f} generated, {figures.prompt_tokens:.1f} of prompts",
    )
    table.add_row(
        "a second",
        f"{figures.ended:.2f} ended, {figures.refused:.2f} refused, {figures.preempted:.2f} preempted",
    )
    return table


def _latencies(figures: Figures) -> Table:
    table = Table("", *(f"p{share * 100:g}" for share in SHARES), box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for label, latency in figures.latencies.items():
        mark = "" if latency.recent else " *"
        table.add_row(label + mark, *map(_seconds, latency.quantiles))
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
