"""What the measurements of CPU time share: flags, stopwatch, and how times are summed up."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def make_parser(about: str | None, *, steps: int) -> argparse.ArgumentParser:
    """With ``--rows``, ``--steps`` and ``--profile``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=numbers, default=[64, 256, 1000])
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--profile", action="store_true", help="print where the time goes; slows it down")
    return parser


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


class Stopwatch:
    """Adds up this thread's CPU time, a lap a step."""

    def __init__(self, profile: bool, elsewhere: Callable[[], float] = lambda: 0.0) -> None:
        """``elsewhere``: the seconds so far that do not count."""
        self._laps_ms: list[float] = []
        self._profiler = cProfile.Profile() if profile else None
        self._elsewhere = elsewhere

    @contextmanager
    def lap(self) -> Iterator[None]:
        if self._profiler is not None:
            self._profiler.enable()
        elsewhere, began = self._elsewhere(), time.thread_time()
        yield
        took = time.thread_time() - began - (self._elsewhere() - elsewhere)
        if self._profiler is not None:
            self._profiler.disable()
        self._laps_ms.append(took * 1e3)

    def sum_up(self) -> tuple[float, float]:
        """Median and 90th percentile of a lap, ms; prints the profile."""
        if self._profiler is not None:
            pstats.Stats(self._profiler).sort_stats("tottime").print_stats(20)
        tenths = statistics.quantiles(self._laps_ms, n=10, method="inclusive")
        return statistics.median(self._laps_ms), tenths[-1]
