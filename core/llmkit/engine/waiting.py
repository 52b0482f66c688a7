"""Who waits: for a place in the batch, in the policy's order, or for another choice's prompt."""

from __future__ import annotations

import heapq
from typing import Any

from llmkit.engine.request import Request


class WaitingQueue:
    """Waiting requests in the policy's order; length does not matter to any operation but removal."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Request]] = []
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed)

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.sort_key, request.order, request))

    def first(self) -> Request | None:
        while self._heap and self._heap[0][1] in self._removed:
            self._removed.remove(heapq.heappop(self._heap)[1])
        return self._heap[0][2] if self._heap else None

    def pop(self) -> None:
        """Drop the first."""
        heapq.heappop(self._heap)

    def remove(self, request: Request) -> None:
        """It stays in the heap until it comes first or the removed are the most."""
        self._removed.add(request.order)
        if len(self._removed) > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1] not in self._removed]
            heapq.heapify(self._heap)
            self._removed.clear()


class Followers:
    """Further choices of requests whose first choice, the leader, has its prompt still to compute.

    They stand outside the queue: what they need most comes from the leader.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Request]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._of.get(request.source.leader or "", {})

    def add(self, request: Request) -> None:
        assert request.source.leader is not None, "it follows somebody"
        self._of.setdefault(request.source.leader, {})[request.request_id] = request
        self._count += 1

    def remove(self, request: Request) -> None:
        assert request.source.leader is not None, "it follows somebody"
        del self._of[request.source.leader][request.request_id]
        self._count -= 1

    def release(self, leader: Request) -> list[Request]:
        """Those of this leader, in the order in which they came; they follow it no more."""
        released = list(self._of.pop(leader.request_id, {}).values())
        self._count -= len(released)
        return released
