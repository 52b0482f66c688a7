"""What is on its way between the pool and a KV connector."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts.connector import KVDirectory, KVLoad


class KVTransfers:
    """Owns the loads that are planned and those of which no result has come; without a connector, none.

    A loaded block is offered to the prefix cache only once the step that loads it has succeeded, so a
    failing load concerns nobody but the request that asked for it.
    """

    def __init__(self, directory: KVDirectory | None) -> None:
        self._directory = directory
        self._planned: dict[str, KVLoad] = {}
        self._unconfirmed: dict[str, list[bytes]] = {}

    def look_up(self, keys: Sequence[bytes], blocks: list[int | None], mark: int) -> None:
        """Put ``mark`` in place of each None in ``blocks`` whose key can be loaded."""
        if self._directory is None:
            return
        holes = [index for index, block in enumerate(blocks) if block is None]
        if not holes:
            return
        for index, there in zip(holes, self._directory.matched([keys[i] for i in holes]), strict=True):
            if there:
                blocks[index] = mark

    def start(self, request_id: str, blocks: list[tuple[bytes, int]]) -> None:
        """Load these (key, block) in the step that is being planned."""
        self._planned[request_id] = KVLoad(request_id, blocks)
        self._unconfirmed[request_id] = [key for key, _ in blocks]

    def confirm(self, request_id: str) -> None:
        """A step that needed what it loaded has succeeded."""
        self._unconfirmed.pop(request_id, None)

    def drop(self, request_id: str) -> None:
        """Its blocks are given back: nothing need be loaded into them any more."""
        self._planned.pop(request_id, None)
        self._unconfirmed.pop(request_id, None)

    def fail(self, request_id: str) -> bool:
        """A load failed; False if nobody waits for it any more."""
        keys = self._unconfirmed.pop(request_id, None)
        if keys is None or self._directory is None:
            return False
        self._directory.failed(keys)
        return True

    def plan(self, evicted: Sequence[tuple[bytes, int]]) -> bytes:
        """What the step's plan carries."""
        if self._directory is None or not (self._planned or evicted):
            return b""
        loads = list(self._planned.values())
        self._planned.clear()
        return self._directory.plan(loads, evicted)

    def reset(self) -> None:
        if self._directory is not None:
            self._directory.reset()
