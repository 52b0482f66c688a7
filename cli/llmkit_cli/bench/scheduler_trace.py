"""Loads to replay: when requests come, how long they are, and which of them begin alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from llmkit.contracts import AddRequest, SamplingParams
from llmkit.errors import UsageError
from llmkit_cli.bench.scheduler_engine import VOCAB_SIZE

MAX_REQUESTS = 1_000_000
MAX_LINE_BYTES = 1 << 16
MAX_LEN = 1 << 20
_POOL = 1 << 17
_UNIQUE = 2
"""Tokens that tell one request's own part from every other's."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_LEN)]


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a trace."""

    arrival_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    """Since the trace's beginning."""
    prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEN)]
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEN)]
    prefix: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Requests that name the same one begin with the same tokens."""
    prefix_tokens: Tokens = 0
    """How many of the prompt's tokens; below ``prompt_tokens``."""
    caller: Annotated[str, msgspec.Meta(max_length=256)] = ""
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 31)] = 0


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests at exponentially distributed distances, lengths uniform from half to one and a half of the
    mean, prefixes and callers drawn evenly."""

    requests: int
    rate: float
    """Requests a second; 0 sends all at once."""
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    prefixes: int = 1
    callers: int = 1
    seed: int = 0

    def trace(self) -> list[TraceRequest]:
        rng = random.Random(self.seed)
        requests, now = [], 0.0
        for _ in range(self.requests):
            now += rng.expovariate(self.rate) if self.rate else 0.0
            own = _around(rng, self.prompt_tokens - self.prefix_tokens)
            requests.append(
                TraceRequest(
                    arrival_s=now,
                    prompt_tokens=self.prefix_tokens + own,
                    output_tokens=_around(rng, self.output_tokens),
                    prefix=str(rng.randrange(self.prefixes)) if self.prefix_tokens else "",
                    prefix_tokens=self.prefix_tokens,
                    caller=f"caller-{rng.randrange(self.callers)}" if self.callers > 1 else "",
                )
            )
        return requests


def read_trace(path: Path) -> list[TraceRequest]:
    """A JSONL file of :class:`TraceRequest`, in order of arrival.

    :raises UsageError: a line is wrong; names it and what is.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    requests: list[TraceRequest] = []
    for number, line in _lines(path):
        where = f"--trace {path}, line {number}"
        if len(requests) == MAX_REQUESTS:
            raise UsageError(f"{where}: a trace has at most {MAX_REQUESTS} requests")
        try:
            request = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{where}: {error}") from error
        if request.prefix_tokens >= request.prompt_tokens:
            raise UsageError(
                f"{where}: prefix_tokens is {request.prefix_tokens}; it must be below prompt_tokens, "
                f"{request.prompt_tokens}"
            )
        requests.append(request)
    if not requests:
        raise UsageError(f"--trace {path}: there is no request in it")
    return sorted(requests, key=lambda request: request.arrival_s)


class Prompts:
    """Makes the requests' tokens: the same prefix gives the same ones, all else differs."""

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        pool = rng.choices(range(VOCAB_SIZE), k=_POOL)
        self._pool = pool
        self._prefixes: dict[str, int] = {}

    def request(self, number: int, entry: TraceRequest) -> AddRequest:
        own = entry.prompt_tokens - entry.prefix_tokens
        unique = [number % VOCAB_SIZE, number // VOCAB_SIZE][:own]
        tokens = [*self._prefix(entry), *unique, *self._piece(number * 7919, own - len(unique))]
        return AddRequest(
            request_id=f"r{number}",
            prompt_ids=tokens,
            params=SamplingParams(),
            seed=number,
            max_tokens=entry.output_tokens,
            priority=entry.priority,
            arrival_s=entry.arrival_s,
            caller=entry.caller,
        )

    def _prefix(self, entry: TraceRequest) -> list[int]:
        if not entry.prefix_tokens:
            return []
        place = self._prefixes.setdefault(entry.prefix, len(self._prefixes))
        # Two numbers that no request's own part begins with stand for the prefix's name.
        name = [VOCAB_SIZE - 1 - place % (VOCAB_SIZE // 2), VOCAB_SIZE - 1 - place // (VOCAB_SIZE // 2)]
        return (name + self._piece(place * 104_729, entry.prefix_tokens))[: entry.prefix_tokens]

    def _piece(self, start: int, length: int) -> list[int]:
        start %= _POOL
        piece = self._pool[start : start + length]
        while len(piece) < length:
            piece += self._pool[: length - len(piece)]
        return piece


def longest(trace: Sequence[TraceRequest]) -> int:
    """Prompt and output of the longest request, tokens."""
    return max(entry.prompt_tokens + entry.output_tokens for entry in trace)


def _around(rng: random.Random, mean: int) -> int:
    return max(1, rng.randint(mean // 2, mean + mean // 2))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"--trace {path}: {error.strerror}") from error
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise UsageError(f"--trace {path}, line {number}: it is longer than {MAX_LINE_BYTES} bytes")
            if line.strip():
                yield number, line
