"""The front's side of what an operator does to the engine: sleep, wake up, profile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from llmkit.contracts import EngineClient, Generator
from llmkit.errors import EngineError, RequestError, RequestTimeout, Sleeping
from llmkit.messages import SLEEP_LEVELS, SLEEP_TAGS

CALL_TIMEOUT_S = 600.0
"""How long a caller waits; weights may have to be read."""
T = TypeVar("T")


class Door(Generator, Protocol):
    """A generator that takes a break, such as ``FrontGenerator``."""

    @property
    def in_flight(self) -> int:
        """Choices that have not ended."""

    def pause(self, why: Callable[[], EngineError] | None) -> None:
        """Refuse every request with what ``why`` makes, until called with None."""


class FrontControl:
    """``contracts.EngineControl``; owns the knowledge of what sleeps and keeps the door shut until nothing
    does.

    Calls take turns. One whose caller has left, or waits no more, goes on to its end.
    """

    def __init__(self, client: EngineClient, door: Door, profiler_dir: str | None) -> None:
        self.asleep: Sequence[str] = ()
        self._client = client
        self._door = door
        self._profiler_dir = profiler_dir
        self._profiling = False
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    async def sleep(self, level: int = 1) -> None:
        """As ``contracts.EngineControl.sleep``."""
        check_level(level)
        await self._run(self._sleep(level), "sleep")

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """As ``contracts.EngineControl.wake_up``."""
        check_tags(tags)
        await self._run(self._wake_up(tags), "wake_up")

    async def start_profile(self) -> None:
        """As ``contracts.EngineControl.start_profile``."""
        if self._profiler_dir is None:
            raise RequestError("there is no place for traces: start the server with --profiler-dir DIR")
        await self._run(self._start_profile(), "start_profile")

    async def stop_profile(self) -> list[str]:
        """As ``contracts.EngineControl.stop_profile``."""
        return await self._run(self._stop_profile(), "stop_profile")

    async def _sleep(self, level: int) -> None:
        if not self.asleep:
            # From here on nobody enters, so whoever is not in yet never will be.
            self._door.pause(_sleeping)
            if self._door.in_flight:
                self._door.pause(None)
                raise RequestError(
                    f"{self._door.in_flight} requests are under way; the engine sleeps without any: let them"
                    " end or abort them",
                    code="busy",
                    status=409,
                )
        try:
            self.asleep = await self._client.call("engine", "sleep", level)
        finally:
            if not self.asleep:
                self._door.pause(None)

    async def _wake_up(self, tags: Sequence[str] | None) -> None:
        check_order(tags, self.asleep)
        self.asleep = await self._client.call("engine", "wake_up", list(tags or SLEEP_TAGS))
        if not self.asleep:
            self._door.pause(None)

    async def _start_profile(self) -> None:
        if self._profiling:
            raise RequestError("a profile is being recorded already; stop it first", status=409, code="busy")
        await self._client.call("engine", "start_profile")
        self._profiling = True

    async def _stop_profile(self) -> list[str]:
        if not self._profiling:
            raise RequestError(
                "no profile is being recorded; start one first", status=409, code="not_profiling"
            )
        self._profiling = False
        traces: list[str] = await self._client.call("engine", "stop_profile")
        return traces

    async def _run(self, job: Coroutine[Any, Any, T], name: str) -> T:
        """:raises RequestTimeout: it goes on, but its caller need not wait."""
        task = asyncio.create_task(self._in_turn(job), name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.wait_for(asyncio.shield(task), CALL_TIMEOUT_S)
        except TimeoutError:
            raise RequestTimeout(f"{name} has not ended within {CALL_TIMEOUT_S:g} s; it goes on") from None

    async def _in_turn(self, job: Awaitable[T]) -> T:
        async with self._turn:
            return await job

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it


def check_level(level: int) -> None:
    """:raises RequestError: there is no such level."""
    if level not in SLEEP_LEVELS:
        raise RequestError(f"level is {level}; it must be 1 or 2", param="level")


def check_tags(tags: Sequence[str] | None) -> None:
    """:raises RequestError: one of them is none."""
    for tag in tags or ():
        if tag not in SLEEP_TAGS:
            raise RequestError(f"tags: {tag!r} is none of weights and kv_cache", param="tags")


def check_order(tags: Sequence[str] | None, asleep: Sequence[str]) -> None:
    """:raises RequestError: the KV cache would be awake while the weights sleep."""
    if tags and "weights" in asleep and "weights" not in tags:
        raise RequestError("tags: kv_cache wakes up with the weights or after them", param="tags", status=409)


def _sleeping() -> Sleeping:
    return Sleeping("the engine sleeps and takes no requests; POST /wake_up wakes it up")
