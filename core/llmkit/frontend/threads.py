"""Long blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(
    function: Callable[[], T], name: str, on_end: Callable[[], None] | None = None
) -> T:
    """Run ``function`` in a thread of its own that ends with the process.

    For work that cannot be interrupted (an import, a plugin's code): the threads of
    ``asyncio.to_thread`` would keep a program from ending until they are done. ``on_end`` is called on
    the event loop once the thread is done, also where nobody waits for it any more.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if on_end is not None:
            on_end()
        if outcome.done():  # cancelled meanwhile
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is awaited
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome
