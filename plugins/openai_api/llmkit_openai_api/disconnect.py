"""Stops the work for a client that went away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from llmkit import RequestError

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499


class ClientGone(RequestError):
    """The client closed the connection; the answer to it reaches nobody."""

    def __init__(self) -> None:
        super().__init__("the client closed the connection", status=CLIENT_CLOSED_REQUEST)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, cancelled when the client hangs up. The request's body must have been read.

    :raises ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hangs_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
