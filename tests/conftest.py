"""Workers of a parallel run share the machine without getting into each other's way."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker processors of its own, which everything it starts inherits.

    Two teams of threads that spin for the same processors take several times as long as one.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    index, workers = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) >= workers:
        os.sched_setaffinity(0, processors[index::workers])
