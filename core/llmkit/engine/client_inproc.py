"""The engine in the caller's process, driven step by step; behind ``llmkit.LLM``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llmkit.engine.core import EngineCore
from llmkit.errors import EngineError
from llmkit.messages import AddRequest, Call, CallTarget, EngineReady, EngineStats, StepOutput


class InprocClient:
    """Requests in, outputs back, all in the calling thread. Owns the core."""

    def __init__(self, core: EngineCore, ready: EngineReady) -> None:
        self.ready = ready
        self._core = core
        self._pending: list[StepOutput] = []

    @property
    def stats(self) -> EngineStats:
        return self._core.stats

    def add(self, request: AddRequest) -> None:
        """Queue a request; if it cannot be, its first output says why."""
        self._pending += self._core.add(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Their last outputs come from :meth:`outputs`; may be called while it runs."""
        self._pending += self._core.abort(request_ids)

    def call(self, target: CallTarget, method: str, *args: Any) -> Any:
        """As ``contracts.EngineClient.call``, at once."""
        answer = self._core.call(Call(0, target, method, list(args)))
        if answer.error is not None:
            raise EngineError(answer.error)
        return answer.value

    def outputs(self) -> Iterator[StepOutput]:
        """Run until nothing is left to do, giving outputs as they come.

        :raises EngineError: a step failed; no request will get more.
        """
        while self._pending or self._core.has_work:
            if not self._pending and (step := self._core.step()) is not None:
                self._pending += step.outputs
            pending, self._pending = self._pending, []
            yield from pending

    def close(self) -> None:
        """Abort what is left and free the workers; idempotent."""
        self._core.abort_all()
        self._core.shutdown()
