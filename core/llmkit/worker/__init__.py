"""The worker: device, weights, KV memory, persistent batch, sampler. :class:`Worker` imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmkit.worker.environment import limit_spinning

if TYPE_CHECKING:
    from llmkit.worker.worker import Worker


def __getattr__(name: str) -> Any:
    # Late, so that limit_spinning can run before torch is loaded.
    if name == "Worker":
        from llmkit.worker.worker import Worker

        return Worker
    raise AttributeError(f"module 'llmkit.worker' has no attribute {name!r}")


__all__ = ["Worker", "limit_spinning"]
