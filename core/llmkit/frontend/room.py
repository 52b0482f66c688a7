"""How many sequences a front takes on at once."""

from __future__ import annotations

from llmkit.errors import QueueFull, RequestError


class Room:
    """Owns the count of choices in flight, which never passes ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self.in_flight = 0
        self._capacity = capacity

    def check(self, choices: int) -> None:
        """:raises QueueFull: so many more do not fit now. :raises RequestError: they never do."""
        if choices > self._capacity:
            raise RequestError(
                f"the request asks for {choices} choices; this server holds {self._capacity} sequences,"
                " running and waiting. Lower n, or send fewer prompts at once",
                param="n",
                code="integer_above_max_value",
            )
        if self.in_flight + choices > self._capacity:
            raise QueueFull(
                f"{self.in_flight} sequences are running or waiting and there is room for {self._capacity};"
                " try again later"
            )

    def enter(self, choices: int) -> None:
        """As :meth:`check`, and takes them on."""
        self.check(choices)
        self.in_flight += choices

    def leave(self, choices: int) -> None:
        self.in_flight -= choices
