"""Logits processors of plugins: which request uses which, and what becomes of one that fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from llmkit.contracts import (
    BatchChange,
    Components,
    LogitsProcessor,
    NewRow,
    ProcessorEnv,
    ProcessorRow,
)
from llmkit.worker.logit_rows import LogitRows


@dataclass(slots=True)
class _Running:
    """One processor, and what it has not been told yet."""

    processor: LogitsProcessor
    added: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Request id -> its arguments in msgpack, and how long its prompt is."""
    removed: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Requests whose arguments it failed to take: it must not run for them as if they had none."""

    def tell(self) -> None:
        if self.added or self.removed:
            added, removed = self.added, self.removed
            self.added, self.removed = {}, []
            decoded = [(name, msgspec.msgpack.decode(data), count) for name, (data, count) in added.items()]
            self.lost.update(added)
            self.processor.update(BatchChange(decoded, removed))
            self.lost.difference_update(added)


class Processors:
    """Owns a worker's logits processors by name, and which of them the requests at hand use."""

    def __init__(self, processors: Mapping[str, LogitsProcessor]) -> None:
        self._running = {name: _Running(processor) for name, processor in processors.items()}
        self._users: dict[str, tuple[str, ...]] = {}

    def add(self, row: NewRow) -> bool:
        """A request comes: whether any processor has work with it."""
        names = []
        for name, data in row.plugin_data.items():
            running = self._running.get(name)
            if running is not None and not (row.params.greedy and running.processor.argmax_invariant):
                running.added[row.request_id] = (data, row.num_prompt)
                names.append(name)
        if names:
            self._users[row.request_id] = tuple(names)
        return bool(names)

    def remove(self, request_id: str) -> None:
        """A request is gone."""
        for name in self._users.pop(request_id, ()):
            running = self._running[name]
            if request_id in running.lost:
                running.lost.remove(request_id)
            elif running.added.pop(request_id, None) is None:
                running.removed.append(request_id)

    def apply(self, logits: Tensor, rows: LogitRows, users: Mapping[int, str]) -> dict[int, str]:
        """Run every processor on its rows of ``logits``; ``users``: row -> request id.

        A processor that raises may have left its rows half changed: they fail, with these words.
        """
        failed: dict[int, str] = {}
        for name, running in self._running.items():
            own = [
                ProcessorRow(request_id, row, rows.before(row))
                for row, request_id in users.items()
                if name in self._users[request_id]
            ]
            if not own:
                continue
            try:
                running.tell()
                running.processor.apply(logits, [row for row in own if row.request_id not in running.lost])
            except Exception as error:  # noqa: BLE001 - a plugin's code; its requests end with the cause
                message = f"logits processor {name!r} failed: {type(error).__name__}: {error}"
                failed.update((row.row, message) for row in own)
                continue
            message = f"logits processor {name!r} failed to take this request's arguments"
            failed.update((row.row, message) for row in own if row.request_id in running.lost)
        return failed


def make_processors(components: Components, vocab_size: int, device: str) -> Processors:
    """All that built-ins and enabled plugins offer."""
    env = ProcessorEnv(vocab_size, device)
    names = components.usable("processor", None)
    return Processors({name: components.create("processor", name, env) for name in names})
