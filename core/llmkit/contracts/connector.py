"""KV connectors: where blocks go when the pool needs their place, and whence they come back.

A connector has two sides that share nothing but bytes. The *directory* lives with the scheduler, knows
which blocks are kept outside the pool under which key, and says for every step what is to be moved. The
*mover* lives with each worker, holds the bytes and moves them. Keys stand for contents (tokens, model,
encoding, salts); blocks move as the raw bytes of every slot, so neither side knows a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from llmkit.config import Config
from llmkit.kv import KVLayout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVConnectorSpec:
    """What a connector is made for; the same in the engine and on every rank. Since 0.1."""

    config: Config
    layout: KVLayout

    @property
    def bytes_a_block(self) -> int:
        """Of one block in all slots, on one rank."""
        return self.layout.num_slots * self.layout.page_bytes


class KVLoad(NamedTuple):
    """What one request is to find in its blocks when this step begins. Since 0.1."""

    request_id: str
    blocks: Sequence[tuple[bytes, int]]
    """(key, block to fill)"""


class KVDirectory(Protocol):
    """A connector's side in the engine; used by one thread, without torch. Since 0.1."""

    def matched(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """Which of these blocks can be loaded. Changes nothing; asked anew while a request waits."""

    def plan(self, loads: Sequence[KVLoad], evicted: Sequence[tuple[bytes, int]]) -> bytes:
        """What every rank's mover does in this step; empty for nothing.

        ``loads`` were all matched since the last plan. ``evicted`` are (key, block): the block still has
        the contents of the key, and will be overwritten in this step; keeping it is up to the connector.
        """

    def failed(self, keys: Sequence[bytes]) -> None:
        """A request that was to load these found at least one missing or damaged on some rank."""

    def reset(self) -> None:
        """Forget everything: no key that was kept so far is matched again."""


class KVBytes(Protocol):
    """The worker's pool as bytes. Since 0.1."""

    @property
    def slots(self) -> Sequence[Tensor]:
        """uint8 ``[num_blocks, page_bytes]`` of each slot, on the worker's device."""


class KVMover(Protocol):
    """A connector's side in one worker. Since 0.1."""

    def apply(self, transfers: bytes) -> Sequence[str]:
        """Do what a plan says, before anything else of its step touches the pool.

        Contents of evicted blocks are read before any block is filled. Gives the requests of which a
        block could not be filled with what its key stands for: these are computed again.
        """

    def close(self) -> None:
        """Free what it holds; idempotent."""


class KVConnector(Protocol):
    """Both sides; made once in the engine and once in every worker. Since 0.1."""

    def directory(self) -> KVDirectory: ...

    def mover(self, memory: KVBytes) -> KVMover: ...


class RegisterKVConnector(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[KVConnectorSpec, Any], KVConnector],
        *,
        refuses: Callable[[KVConnectorSpec], str | None],
    ) -> None:
        """Chosen by name only: ``--kv-connector``."""
