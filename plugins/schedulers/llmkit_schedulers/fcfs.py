"""First come, first served: by order of arrival, and the latest arrival is preempted first."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts import RequestView, SchedulingPolicy


class FirstComeFirstServed(SchedulingPolicy):
    """Keeps nothing: every answer follows from the order of arrival."""

    def key(self, request: RequestView) -> int:
        return request.order

    def admit(self, request: RequestView, running: Sequence[RequestView]) -> bool:
        return True

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(running, key=lambda request: request.order)
