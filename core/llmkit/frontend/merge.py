"""Several choices' outputs as one sequence, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from llmkit.contracts import OutputStream, StepOutput
from llmkit.errors import EngineError

Outcome = StepOutput | EngineError


class Merged(Protocol):
    """Outputs of all streams; must not be asked for more once every one has ended."""

    async def next(self) -> tuple[int, Outcome]:
        """(index of the stream, its next output or the error it ended with)."""

    async def close(self, indices: Sequence[int]) -> None:
        """End these streams early: their requests are aborted."""


def merged(streams: Sequence[OutputStream]) -> Merged:
    """A single stream is read as it comes; more than one need a task each."""
    return _Single(streams[0]) if len(streams) == 1 else _Several(streams)


class _Single:
    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    async def next(self) -> tuple[int, Outcome]:
        return 0, await _outcome(self._stream)

    async def close(self, indices: Sequence[int]) -> None:
        if indices:
            await self._stream.aclose()


class _Several:
    """Owns one reading task a stream."""

    def __init__(self, streams: Sequence[OutputStream]) -> None:
        self._streams = streams
        self._arrived: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()
        self._readers = [asyncio.create_task(self._read(index)) for index in range(len(streams))]

    async def next(self) -> tuple[int, Outcome]:
        return await self._arrived.get()

    async def close(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._readers[index].cancel()
            await self._streams[index].aclose()

    async def _read(self, index: int) -> None:
        while True:
            outcome = await _outcome(self._streams[index])
            self._arrived.put_nowait((index, outcome))
            if isinstance(outcome, EngineError) or outcome.finish is not None:
                return


async def _outcome(stream: OutputStream) -> Outcome:
    try:
        return await anext(stream)
    except EngineError as error:
        return error
    except StopAsyncIteration:
        return EngineError("the engine ended the request's outputs without a finish reason")
