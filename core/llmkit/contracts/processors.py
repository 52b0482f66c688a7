"""Logits processors: what a plugin does to the logits of requests that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

TokenArray: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


@dataclass(frozen=True, slots=True)
class ProcessorEnv:
    """What a processor is made for. Since 0.1."""

    vocab_size: int
    device: str


@dataclass(frozen=True, slots=True)
class BatchChange:
    """Requests with arguments for this processor that came or left since it last ran. Since 0.1.

    ``removed`` left before ``added`` came: a preempted request may be in both.
    """

    added: Sequence[tuple[str, Any, int]]
    """(request id, its arguments as ``check`` returned them, number of prompt tokens)."""
    removed: Sequence[str]


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """One row of logits that belongs to such a request. Since 0.1."""

    request_id: str
    row: int
    """Its index in the logits given to ``apply``."""
    tokens: TokenArray
    """int32: prompt and output before the token to sample, drafts included; read only."""


class LogitsProcessor(Protocol):
    """One object a worker, for all its requests. A row's result depends on that row alone. Since 0.1."""

    argmax_invariant: bool
    """It never changes which token is likeliest: greedy requests skip it."""

    def update(self, change: BatchChange) -> None:
        """Before the next ``apply``; requests may come again after preemption."""

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """Change ``logits`` (float32 [all rows, vocab]) in place at the given rows."""


class RegisterLogitsProcessor(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[ProcessorEnv, Any], LogitsProcessor],
        *,
        check: Callable[[Any], Any],
    ) -> None:
        """A request asks for it with ``plugin_args[name]``. ``check(arguments)`` runs in the front, gives
        what the worker gets (msgpack values), and raises ValueError in words for the client."""
