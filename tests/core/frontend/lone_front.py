"""A program with a front and nothing else: prints its engine's process id, then waits to be killed."""

from __future__ import annotations

import asyncio

from tests.core.frontend.test_front import make_front


async def main() -> None:
    front = make_front()
    await front.start()
    while front.state.phase != "ready":
        await asyncio.sleep(0.01)
    print(front.engine_pid, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main())
