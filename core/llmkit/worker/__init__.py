"""The worker: device, weights, KV memory, persistent batch, sampler. Importing it imports torch."""

from llmkit.worker.worker import Worker

__all__ = ["Worker"]
