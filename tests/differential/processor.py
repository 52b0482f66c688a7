"""A logits processor with state a request: what it does follows from all tokens before and the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from torch import Tensor

from llmkit.contracts import BatchChange, ProcessorEnv, ProcessorRow
from llmkit.registry import Entry

NAME = "drift"


class Drift:
    """Raises eight tokens that the sum of the row's tokens and its place in the answer choose."""

    argmax_invariant = False

    def __init__(self, env: ProcessorEnv, options: Any) -> None:
        self._vocab_size = env.vocab_size
        self._asked: dict[str, tuple[float, int]] = {}

    def update(self, change: BatchChange) -> None:
        for request_id in change.removed:
            del self._asked[request_id]
        for request_id, boost, num_prompt in change.added:
            self._asked[request_id] = (boost, num_prompt)

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        for row in rows:
            boost, num_prompt = self._asked[row.request_id]
            place = (int(row.tokens.sum()) + 31 * (len(row.tokens) - num_prompt)) % (self._vocab_size - 8)
            logits[row.row, place : place + 8] += boost


def entry() -> Entry:
    """For a registry, as if a plugin had registered it."""
    return Entry("processor", NAME, Drift, "test")


def data(plugin_args: dict[str, Any]) -> dict[str, bytes]:
    """What the front makes of a request's ``plugin_args``."""
    return {name: msgspec.msgpack.encode(arguments) for name, arguments in plugin_args.items()}
