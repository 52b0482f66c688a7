"""How much a front takes on at once: sequences of all together, tokens of each caller."""

from __future__ import annotations

from llmkit.errors import OverBudget, QueueFull, RequestError


class Room:
    """Owns the count of sequences in flight, which never passes ``capacity``, and each caller's tokens."""

    def __init__(self, capacity: int, tokens_per_caller: int | None = None) -> None:
        """``tokens_per_caller``: of all its requests in flight, prompts and most to come; None: no bound."""
        self.in_flight = 0
        self.capacity = capacity
        self._tokens_per_caller = tokens_per_caller
        self._tokens: dict[str, int] = {}
        """Of callers with requests in flight."""

    def check(self, sequences: int, field: str = "n") -> None:
        """``field`` says how many of each prompt.

        :raises QueueFull: so many more do not fit now. :raises RequestError: they never do.
        """
        if sequences > self.capacity:
            lower = "Send" if field == "prompt" else f"Lower {field}, or send"
            raise RequestError(
                f"the request asks for {sequences}; this server holds {self.capacity} sequences, running and"
                f" waiting. {lower} fewer prompts at once",
                param=field,
                code="integer_above_max_value",
            )
        if self.in_flight + sequences > self.capacity:
            raise QueueFull(
                f"{self.in_flight} sequences are running or waiting and there is room for {self.capacity};"
                " try again later"
            )

    def enter(self, sequences: int, field: str = "n") -> Place:
        """As :meth:`check`, and takes them on."""
        place = Place(self)
        place.resize(sequences, field)
        return place

    def tokens_of(self, caller: str) -> int:
        """What ``caller`` has in flight, as far as it is counted."""
        return self._tokens.get(caller, 0)

    def _take(self, caller: str, tokens: int) -> None:
        most = self._tokens_per_caller
        if most is None:
            return
        if tokens > most:
            raise RequestError(
                f"the request may come to {tokens} tokens, prompts and answers together; a key may have"
                f" {most} in flight at most. Lower max_tokens, n or the prompt",
                param="max_tokens",
                code="integer_above_max_value",
            )
        held = self.tokens_of(caller)
        if held + tokens > most:
            raise OverBudget(
                f"this key has {held} tokens in flight and the request may come to {tokens}; at most"
                f" {most} are allowed at once. Try again when others of its requests have ended"
            )
        self._tokens[caller] = held + tokens

    def _give_back(self, caller: str, tokens: int) -> None:
        left = self.tokens_of(caller) - tokens
        if left > 0:
            self._tokens[caller] = left
        else:
            self._tokens.pop(caller, None)


class Place:
    """What one request holds of a :class:`Room`; given back a sequence at a time, or all at once."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._sequences = 0
        self._caller = ""
        self._prompt_tokens = 0
        self._tokens_each = 0

    def resize(self, sequences: int, field: str = "n") -> None:
        """Before :meth:`charge`. :raises QueueFull: as :meth:`Room.check`; nothing is held then."""
        self.leave(self._sequences)
        self._room.check(sequences, field)
        self._room.in_flight += sequences
        self._sequences = sequences

    def charge(self, caller: str, prompt_tokens: int, tokens_each: int) -> None:
        """Count the request's tokens; the prompt goes with the last sequence.

        :raises OverBudget: the caller has too many in flight.
        :raises RequestError: it never may have so many.
        """
        self._room._take(caller, prompt_tokens + tokens_each * self._sequences)
        self._caller, self._prompt_tokens, self._tokens_each = caller, prompt_tokens, tokens_each

    def leave(self, sequences: int) -> None:
        """So many sequences have ended."""
        assert sequences <= self._sequences, "more left than came"
        if not sequences:
            return
        self._sequences -= sequences
        self._room.in_flight -= sequences
        tokens = self._tokens_each * sequences + (0 if self._sequences else self._prompt_tokens)
        if tokens:
            self._room._give_back(self._caller, tokens)

    def close(self) -> None:
        """All have; idempotent."""
        self.leave(self._sequences)
