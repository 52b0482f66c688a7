"""What an operator may do to a running engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class EngineControl(Protocol):
    """Of the engine behind the routes; each call waits for its end, between steps. Since 0.1.

    All raise EngineError where the engine is gone, fails at it or takes too long.
    """

    @property
    def asleep(self) -> Sequence[str]:
        """What sleeps, of ``weights`` and ``kv_cache``; requests are refused until it is empty."""

    async def sleep(self, level: int = 1) -> None:
        """Give the KV cache's memory back (1), the weights' too (2); the prefix cache is emptied.

        :raises RequestError: requests are under way (409), or there is no such level.
        """

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again, all or what ``tags`` name; weights are read from the checkpoint again.

        :raises RequestError: there is no such tag, or the KV cache would be awake before the weights.
        """

    async def start_profile(self) -> None:
        """:raises RequestError: there is no directory for traces (``--profiler-dir``), or one is recorded."""

    async def stop_profile(self) -> list[str]:
        """The paths of the traces, one a rank. :raises RequestError: none is recorded."""
