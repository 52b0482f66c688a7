"""Several asynchronous iterators as one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Items that are awaited one by one, of which several may be there at once."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...
    async def __anext__(self) -> T_co: ...
    def ready(self) -> Sequence[T_co]:
        """The items that would come now without waiting, taken; the end and errors wait for ``anext``."""


class Merged(Generic[T]):
    """The items of all sources, each with its source's index, in order of arrival.

    Iterate once, in one task. An exception of a source is raised where its next item would have come.
    Owns a reading task for each source, none where there is only one. What has arrived waits without a
    bound, so a reader never waits for whoever iterates and can be stopped at any moment; sources are
    bounded by the length of what they give. Sources belong to the caller, who closes them.
    """

    def __init__(self, sources: Sequence[Source[T]]) -> None:
        self._only = sources[0] if len(sources) == 1 else None
        self._arrived: deque[tuple[int, T] | _End] = deque()
        self._arrival = asyncio.Event()
        self._readers = (
            []
            if self._only is not None
            else [asyncio.create_task(self._read(index, source)) for index, source in enumerate(sources)]
        )
        self._reading = len(self._readers)

    def __aiter__(self) -> AsyncIterator[tuple[int, T]]:
        return self

    async def __anext__(self) -> tuple[int, T]:
        if self._only is not None:
            return 0, await anext(self._only)
        while self._reading:
            if not self._arrived:
                self._arrival.clear()
                await self._arrival.wait()
            arrival = self._arrived.popleft()
            if not isinstance(arrival, _End):
                return arrival
            self._reading -= 1
            if arrival.error is not None:
                raise arrival.error
        raise StopAsyncIteration

    def ready(self) -> list[tuple[int, T]]:
        """As :meth:`Source.ready`."""
        if self._only is not None:
            return [(0, item) for item in self._only.ready()]
        items: list[tuple[int, T]] = []
        while self._arrived:
            arrival = self._arrived[0]
            if isinstance(arrival, _End):
                break
            items.append(arrival)
            self._arrived.popleft()
        return items

    def stop(self, index: int) -> None:
        """Read no more of this source; what it gave before may still come."""
        if self._only is not None:
            self._only = None
        elif self._readers:
            self._readers[index].cancel()

    async def _read(self, index: int, source: Source[T]) -> None:
        end = _End()
        try:
            async for item in source:
                self._arrive((index, item))
        except Exception as error:  # noqa: BLE001 - raised where the items are awaited
            end.error = error
        finally:
            self._arrive(end)

    def _arrive(self, arrival: tuple[int, T] | _End) -> None:
        self._arrived.append(arrival)
        self._arrival.set()


class _End:
    """A source gives nothing more."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: Exception | None = None
