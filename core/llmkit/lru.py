"""What is kept for the next one who asks: bounded in number and in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Forgets what was used the longest time ago; not safe to use from several threads without a lock."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Value | None:
        """The value, now the last used."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value of ``size`` bytes, in place of the one that ``key`` had; forget others to make room.

        One that is larger than the whole cache is not kept.
        """
        self.pop(key)
        self._items[key] = value, size
        self._bytes += size
        while len(self._items) > self._max_items or self._bytes > self._max_bytes:
            _, (_, freed) = self._items.popitem(last=False)
            self._bytes -= freed

    def pop(self, key: Key) -> None:
        """Forget it; unknown keys are ignored."""
        _, freed = self._items.pop(key, (None, 0))
        self._bytes -= freed
