"""What many values come to, and where the figures of a measurement go."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import typer

from llmkit.errors import UsageError

STDOUT = Path("-")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 90th and 99th percentile, and maximum of at least one value.

    Between two values a percentile is interpolated, as ``numpy.percentile`` does.
    """
    # One value is every percentile; before Python 3.13 quantiles wants two.
    cuts = statistics.quantiles(values if len(values) > 1 else [*values] * 2, n=100, method="inclusive")
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "p90": cuts[89],
        "p99": cuts[98],
        "max": max(values),
    }


def check_writable(flag: str, path: Path | None) -> None:
    """Before a measurement that may take long. :raises UsageError: no file can be written there."""
    if path is None or path == STDOUT:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{flag} {path}: no file can be written there ({error.strerror})") from error


def write_json(figures: Mapping[str, object], path: Path | None) -> None:
    """To a file or to stdout, where ``path`` says so."""
    if path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(figures)).decode()
    if path == STDOUT:
        typer.echo(text)
    else:
        path.write_text(text + "\n")
