"""Responses that are kept, in memory and within bounds, each for who made it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from llmkit import RequestError
from llmkit_openai_api.responses.items import Item, output_items
from llmkit_openai_api.responses.run import ResponseRun

MAX_REMEMBERED = 8192
"""Ids of responses that were dropped."""


@dataclass(slots=True)
class StoredResponse:
    """A response and what it answers."""

    run: ResponseRun
    caller: str
    items: Sequence[Item]
    """All of the conversation before it, that of previous responses first."""
    task: asyncio.Task[None] | None = None
    """Of one in the background."""
    output: list[Item] = field(default_factory=list)
    """Once it has ended."""
    size: int = 0
    """Bytes that it is counted with, once it has ended. Items that several share count with each."""

    @property
    def id(self) -> str:
        return self.run.response.id


class StoredResponses:
    """Keeps the newest ``most``, of together at most ``most_bytes``; those under way are never dropped."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[tuple[str, str], tuple[Item, str]] = {}
        """(caller, id of the item) -> the item, and the newest response that has ended and holds it."""
        self._bytes = 0
        self._dropped: OrderedDict[str, str] = OrderedDict()
        """Id -> caller."""

    @property
    def enabled(self) -> bool:
        return self._most > 0

    def add(self, stored: StoredResponse) -> None:
        """From its beginning on."""
        self._kept[stored.id] = stored

    def settle(self, stored: StoredResponse) -> None:
        """It has ended: count it, and drop the oldest where there is too much now."""
        if stored.id not in self._kept or stored.size:
            return
        stored.output = output_items(stored.run.response.output)
        for item in (*stored.items, *stored.output):
            self._items[stored.caller, item["id"]] = item, stored.id
        held = msgspec.json.encode([stored.items, stored.run.response])
        stored.size = len(held) + stored.run.size
        self._bytes += stored.size
        for old in [old for old in self._kept.values() if old.run.ended]:
            if len(self._kept) <= self._most and self._bytes <= self._most_bytes:
                return
            self._forget(old)
            self._dropped[old.id] = old.caller
            if len(self._dropped) > MAX_REMEMBERED:
                self._dropped.popitem(last=False)

    def get(self, name: str, caller: str, param: str | None = None) -> StoredResponse:
        """:raises RequestError: 404, nobody has made it, somebody else has, or it is kept no more."""
        stored = self._kept.get(name)
        if stored is not None and stored.caller == caller:
            return stored
        why = "there is none, or it was made with store false or deleted"
        if not self.enabled:
            why = "this server stores none (--max-stored-responses 0)"
        elif self._dropped.get(name) == caller:
            why = (
                f"it was dropped for newer ones: this server keeps {self._most} (--max-stored-responses) of"
                f" together {self._most_bytes} bytes (--max-stored-response-bytes)"
            )
        raise RequestError(
            f"the response {name[:100]!r} is not stored here: {why}",
            param=param,
            code="previous_response_not_found" if param == "previous_response_id" else "not_found",
            status=404,
        )

    def item(self, name: str, caller: str, param: str) -> Item:
        """:raises RequestError: 404, no response that is stored for ``caller`` has it."""
        found = self._items.get((caller, name))
        if found is None:
            raise RequestError(
                f"{param}: no stored response has the item {name[:100]!r}",
                param=param,
                code="not_found",
                status=404,
            )
        return found[0]

    async def cancel(self, stored: StoredResponse) -> None:
        """End it if it is under way; the engine is free then. One that a connection drives ends with that."""
        if stored.task is not None:
            stored.task.cancel()
            await asyncio.wait({stored.task})
        await stored.run.aclose()
        self.settle(stored)

    async def remove(self, stored: StoredResponse) -> None:
        """Forget it, and cancel it."""
        if stored.id in self._kept:
            self._forget(stored)
        await self.cancel(stored)

    def _forget(self, stored: StoredResponse) -> None:
        del self._kept[stored.id]
        self._bytes -= stored.size
        for item in (*stored.items, *stored.output):
            key = stored.caller, item["id"]
            if self._items.get(key, (item, ""))[1] == stored.id:
                del self._items[key]
