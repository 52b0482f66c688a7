"""Traces of what a worker does, by torch's profiler."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from llmkit.errors import EngineError


class Profiler:
    """Owns the recording under way, of the thread that started it; at most one."""

    def __init__(self, directory: str | None) -> None:
        """Without a directory there is nothing to write to, and nothing is recorded."""
        self._directory = directory
        self._recording: profile | None = None

    def start(self) -> None:
        """:raises EngineError: there is no directory, or one is being recorded."""
        if self._directory is None:
            raise EngineError("traces need a directory: start with --profiler-dir DIR")
        if self._recording is not None:
            raise EngineError("a profile is being recorded already; stop it first")
        self._recording = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._recording.start()

    def stop(self) -> str:
        """End the recording; the path of its trace, which chrome://tracing and Perfetto read.

        :raises EngineError: none is under way, or the trace cannot be written.
        """
        if self._recording is None or self._directory is None:
            raise EngineError("no profile is being recorded; start one first")
        recording, self._recording = self._recording, None
        recording.stop()
        path = Path(self._directory) / f"llmkit-{os.getpid()}-{time.time_ns()}.pt.trace.json.gz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            recording.export_chrome_trace(str(path))
        except OSError as error:
            raise EngineError(f"--profiler-dir {self._directory}: cannot write there: {error}") from error
        return str(path)
