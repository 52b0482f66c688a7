"""Several asynchronous iterators as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from llmkit.merge import Merged


class source:
    """Gives items, then ends as told; what is ``at_once`` needs no waiting."""

    def __init__(
        self, *items: int, then: BaseException | None = None, hang: bool = False, at_once: Sequence[int] = ()
    ) -> None:
        self._items = self._give(items, then, hang)
        self._at_once = list(at_once)

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return await anext(self._items)

    def ready(self) -> Sequence[int]:
        ready, self._at_once = self._at_once, []
        return ready

    async def _give(self, items: Sequence[int], then: BaseException | None, hang: bool) -> AsyncIterator[int]:
        for item in items:
            await asyncio.sleep(0)
            yield item
        if then is not None:
            raise then
        if hang:
            await asyncio.Event().wait()


@pytest.mark.parametrize("count", [0, 1, 2, 5])
async def test_every_item_of_every_source_comes_in_its_sources_order(count: int) -> None:
    merged = Merged([source(*range(10 * index, 10 * index + index)) for index in range(count)])
    got = [pair async for pair in merged]
    for index in range(count):
        assert [item for at, item in got if at == index] == [*range(10 * index, 10 * index + index)]
    with pytest.raises(StopAsyncIteration):
        await anext(merged)


@pytest.mark.parametrize("others", [0, 2])
async def test_an_exception_is_raised_in_its_place(others: int) -> None:
    merged = Merged([source(1, then=ValueError("no more")), *(source(hang=True) for _ in range(others))])
    assert await anext(merged) == (0, 1)
    with pytest.raises(ValueError, match="no more"):
        await anext(merged)
    for index in range(others):
        merged.stop(index + 1)


async def test_a_stopped_source_gives_no_more_and_the_others_go_on() -> None:
    merged = Merged([source(1, hang=True), source(2, hang=True)])
    assert {await anext(merged), await anext(merged)} == {(0, 1), (1, 2)}
    merged.stop(0)
    waiting = asyncio.ensure_future(anext(merged))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    merged.stop(1)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 5)


async def test_stopping_never_waits_for_whoever_iterates() -> None:
    merged = Merged([source(*range(5000)), source(*range(5000))])
    await anext(merged)
    while len(merged._arrived) < 5000:
        await asyncio.sleep(0)
    for index in range(2):
        merged.stop(index)
    before = asyncio.all_tasks()
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == len(before) - 2


async def test_what_is_there_comes_together_and_an_error_waits_its_turn() -> None:
    merged = Merged([source(1, hang=True), source(2, then=ValueError("no more"))])
    assert merged.ready() == []
    first = await anext(merged)
    await asyncio.sleep(0.01)
    assert sorted([first, *merged.ready()]) == [(0, 1), (1, 2)]
    assert merged.ready() == []
    with pytest.raises(ValueError, match="no more"):
        await anext(merged)
    merged.stop(0)


async def test_one_source_gives_what_it_has() -> None:
    merged = Merged([source(1, at_once=[2, 3])])
    assert await anext(merged) == (0, 1)
    assert merged.ready() == [(0, 2), (0, 3)]
