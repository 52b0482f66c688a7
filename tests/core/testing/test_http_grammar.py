"""The stream checker finds each way to break the grammar."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from llmkit.testing.http import StreamError, validate_stream

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "f"}


def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "choices": [choice]}


USAGE = {
    **HEAD,
    "choices": [],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
ERROR = {"error": {"message": "m", "type": "server_error", "param": None, "code": None}}
GOOD: list[Any] = [
    chunk(0, {"role": "assistant", "content": ""}),
    chunk(0, {"content": "a"}),
    chunk(1, {"role": "assistant", "content": ""}),
    chunk(0, {}, "stop"),
    chunk(1, {"content": "b"}),
    chunk(1, {}, "length"),
    USAGE,
    "[DONE]",
]


def lines(events: list[Any]) -> list[str]:
    rows: list[str] = []
    for event in events:
        rows += [f"data: {event if isinstance(event, str) else json.dumps(event)}", ""]
    return rows


def test_a_good_stream_is_put_together() -> None:
    answer = validate_stream([": comment", *lines(GOOD)])
    assert {i: choice.text for i, choice in answer.choices.items()} == {0: "a", 1: "b"}
    assert answer.usage == USAGE["usage"]


def test_an_error_may_end_a_stream_anywhere() -> None:
    assert validate_stream(lines([ERROR])).error == ERROR["error"]
    assert validate_stream(lines([*GOOD[:4], ERROR])).error == ERROR["error"]


def test_chunks_may_count_their_choice() -> None:
    assert validate_stream(lines(counted(1, 1, 2, 0))).usage == USAGE["usage"]


@pytest.mark.parametrize("counts", [(1, 1, 0, 0), (1, None, 1, 1), (1, 1, 2, 1)])
def test_counts_that_fall_miss_or_exceed_the_whole_are_found(counts: tuple[int | None, ...]) -> None:
    with pytest.raises(StreamError):
        validate_stream(lines(counted(*counts)))


def counted(*counts: int | None) -> list[Any]:
    """A stream whose chunks say how many tokens their choice has."""
    chunks = [
        chunk(0, {"role": "assistant", "content": ""}),
        chunk(0, {"content": "a"}),
        chunk(0, {}, "stop"),
        chunk(1, {"role": "assistant"}, None),
    ]
    for part, count in zip(chunks, counts, strict=True):
        if count is not None:
            part["usage"] = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": 1 + count}
    return [*chunks, chunk(1, {}, "stop") | {"usage": chunks[3].get("usage")}, USAGE, "[DONE]"]


def _drop(position: int) -> Callable[[list[Any]], None]:
    return lambda events: events.pop(position) and None


def _insert(position: int, event: Any) -> Callable[[list[Any]], None]:
    return lambda events: events.insert(position, event)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_drop(0), id="no role"),
        pytest.param(_insert(1, chunk(0, {"role": "assistant"})), id="role twice"),
        pytest.param(_insert(4, chunk(0, {"content": "late"})), id="text after the finish chunk"),
        pytest.param(_insert(4, chunk(0, {}, "stop")), id="finished twice"),
        pytest.param(_drop(3), id="not finished"),
        pytest.param(lambda e: e[3]["choices"][0].update(finish_reason="abort"), id="foreign reason"),
        pytest.param(lambda e: e[3]["choices"][0]["delta"].update(content="x"), id="text with the reason"),
        pytest.param(lambda e: e[1].update(id="other"), id="two ids"),
        pytest.param(lambda e: e[1].pop("created"), id="no time"),
        pytest.param(_insert(1, USAGE), id="usage early"),
        pytest.param(lambda e: e[6]["usage"].update(total_tokens=9), id="usage does not add up"),
        pytest.param(_drop(7), id="no end"),
        pytest.param(_insert(8, chunk(0, {})), id="more after the end"),
        pytest.param(lambda e: e.__setitem__(slice(0, 7), []), id="end alone"),
        pytest.param(_insert(1, "{"), id="no json"),
        pytest.param(_insert(1, '{"a": NaN}'), id="not a number"),
        pytest.param(_insert(2, ERROR), id="error in the middle"),
    ],
)
def test_each_fault_is_found(spoil: Callable[[list[Any]], Any]) -> None:
    events = copy.deepcopy(GOOD)
    spoil(events)
    with pytest.raises(StreamError):
        validate_stream(lines(events))


def test_frames_need_a_blank_line_between_them() -> None:
    with pytest.raises(StreamError):
        validate_stream([line for line in lines(GOOD) if line])
