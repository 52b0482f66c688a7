"""Clients of every kind at once: some patient, some that hang up, some that ask nonsense."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from llmkit.testing.http import validate_stream

ANSWER_WITHIN_S = 120.0
"""A request that got nothing for so long counts as unanswered."""
NUM_ASKS = 60
Body = dict[str, Any]
SCHEMA = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["done", "count"],
    "additionalProperties": False,
}

CONSTRAINTS: list[Body] = [
    {"allowed_token_ids": [104, 105]},  # it repeats itself: drafts are right
    {"structured_outputs": {"regex": "[a-z]{3,9}( [a-z]{3,9})*"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}}},
]


@dataclass
class Load:
    """Random requests to one server. Owns what was seen: what happened, and what must not have."""

    url: str
    rng: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _answers: dict[int, Any] = field(default_factory=dict)
    """What each ask got when it was first answered whole."""

    def __post_init__(self) -> None:
        self._asks = [_ask(self.rng) for _ in range(NUM_ASKS)]

    async def run(self, clients: int, seconds: float) -> None:
        """So many clients one request after another, for so long; returns when all are answered."""
        end = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=4 * clients)
        async with httpx.AsyncClient(
            base_url=self.url, trust_env=False, timeout=ANSWER_WITHIN_S, limits=limits
        ) as http:
            await asyncio.gather(*(self._client(http, end) for _ in range(clients)))

    async def _client(self, http: httpx.AsyncClient, end: float) -> None:
        kinds = [self._whole, self._whole, self._streamed, self._streamed, self._left, self._cut, self._wrong]
        while time.monotonic() < end:
            kind = self.rng.choice(kinds)
            try:
                await kind(http, self.rng.randrange(NUM_ASKS))
            except httpx.TimeoutException:
                self.faults.append(f"{kind.__name__}: no answer within {ANSWER_WITHIN_S:g} s")
            except (httpx.HTTPError, AssertionError) as error:
                self.faults.append(f"{kind.__name__}: {type(error).__name__}: {error}")
            self.happened[kind.__name__.strip("_")] += 1

    async def _whole(self, http: httpx.AsyncClient, number: int) -> None:
        answer = await http.post("/v1/completions", json=self._asks[number])
        if self._busy(answer):
            return
        assert answer.status_code == 200, answer.text
        choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
        self._compare(number, [(choice["text"], choice["finish_reason"]) for choice in choices])

    async def _streamed(self, http: httpx.AsyncClient, number: int) -> None:
        async with http.stream("POST", "/v1/completions", json=self._streaming(number)) as answer:
            lines = [line async for line in answer.aiter_lines()]
        if self._busy(answer):
            return
        assert answer.status_code == 200, "\n".join(lines)
        streamed = validate_stream(lines)
        assert streamed.error is None, streamed.error
        choices = [choice for _, choice in sorted(streamed.choices.items())]
        self._compare(number, [(choice.text, choice.finish_reason) for choice in choices])

    async def _left(self, http: httpx.AsyncClient, number: int) -> None:
        """A stream that nobody reads to its end."""
        chunks = self.rng.randrange(1, 20)
        async with http.stream("POST", "/v1/completions", json=self._streaming(number)) as answer:
            async for _ in answer.aiter_lines():
                chunks -= 1
                if not chunks:
                    break

    async def _cut(self, http: httpx.AsyncClient, number: int) -> None:
        """A client that hangs up before anything has come."""
        try:
            await http.post(
                "/v1/completions", json=self._asks[number], timeout=self.rng.choice([0.001, 0.01, 0.05, 0.2])
            )
        except httpx.TimeoutException:
            self.happened["hung up in time"] += 1

    async def _wrong(self, http: httpx.AsyncClient, number: int) -> None:
        field_name, value = self.rng.choice(
            [
                ("temperature", -1),
                ("top_p", 2),
                ("n", 0),
                ("max_tokens", 1 << 40),
                ("stop", [""]),
                ("seed", "x"),
            ]
        )
        answer = await http.post("/v1/completions", json=self._asks[number] | {field_name: value})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"], answer.text

    def _streaming(self, number: int) -> Body:
        """The same ask, less what no stream can give."""
        ask = {name: value for name, value in self._asks[number].items() if name != "prompt_logprobs"}
        return ask | {"stream": True}

    def _compare(self, number: int, answer: Any) -> None:
        first = self._answers.setdefault(number, answer)
        if answer != first:
            self.faults.append(f"{self._asks[number]} got {answer!r}, before {first!r}")

    def _busy(self, answer: httpx.Response) -> bool:
        """The queue was full, which is an answer too."""
        if answer.status_code != 429:
            return False
        self.happened["429"] += 1
        return True


def _ask(rng: random.Random) -> Body:
    """Short and long, greedy and not; many begin alike."""
    story = [7 * place % 251 for place in range(rng.choice([8, 8, 8, 16, 128]))]
    body: Body = {
        "prompt": story + [rng.randrange(256) for _ in range(rng.choice([0, 1, 1, 30]))],
        "max_tokens": rng.choice([1, 32, 160, 160]),
        "temperature": rng.choice([0, 0.7, 1.0]),
        "seed": rng.randrange(1 << 30),
    }
    extras: list[Body] = [
        {},
        {"n": rng.randrange(2, 5)},
        {"stop": [chr(rng.randrange(97, 123)), "never"]},
        {"logprobs": 3},
        {"top_p": 0.8, "top_k": 50, "repetition_penalty": 1.2},
        {"ignore_eos": True, "min_tokens": 1},
        {"cache_salt": "mine"},
        {"prompt_logprobs": 1},
        {"bad_words": ["q", "xy"]},
        rng.choice(CONSTRAINTS),
    ]
    for extra in rng.sample(extras, 2):
        body |= extra
    return body
