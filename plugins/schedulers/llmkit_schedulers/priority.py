"""By priority, lower first; waiting makes up for it, so that nobody starves."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts import RequestView, SchedulingPolicy


class Priority(SchedulingPolicy):
    """Keeps nothing. ``aging_s`` seconds of waiting are worth one level of priority.

    All that wait age alike, so ``priority * aging_s - time waited`` orders them as ``priority +
    arrival / aging_s`` does, which never changes. Preemption follows the same order: whoever made way
    stands behind the one it made way for, and nobody makes way twice for the same request.
    """

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s

    def key(self, request: RequestView) -> tuple[float, int]:
        return request.priority + request.arrival_s / self._aging_s, request.order

    def admit(self, request: RequestView, running: Sequence[RequestView]) -> bool:
        return True

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(running, key=self.key)

    def yields(self, request: RequestView, running: Sequence[RequestView]) -> RequestView | None:
        # Among equals the one that runs goes on, whoever of them came first.
        lesser = [other for other in running if other.priority > request.priority]
        last = max(lesser, key=self.key, default=None)
        return last if last is not None and self.key(request) < self.key(last) else None
