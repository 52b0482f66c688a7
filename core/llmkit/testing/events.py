"""Server-sent events with names, as checkers of streams read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from llmkit.testing.http import StreamError


def need(holds: bool, rule: str, line: str) -> None:
    """:raises StreamError: the rule does not hold."""
    if not holds:
        raise StreamError(f"{rule}; got: {line[:2000]}")


def named_events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(name, payload, line of the payload) of each event; comments are passed over.

    :raises StreamError: a frame is not an ``event:`` line, a ``data:`` line with a JSON object, a blank line.
    """
    frame: list[str] = []
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            frame.append(line)
            continue
        if not frame:
            continue
        shape = len(frame) == 2 and frame[0].startswith("event: ") and frame[1].startswith("data: ")
        need(shape, "a frame is an event: line and a data: line", "\n".join(frame))
        yield frame[0].removeprefix("event: "), _decoded(frame[1].removeprefix("data: ")), frame[1]
        frame = []
    need(not frame, "a blank line ends each event", "\n".join(frame))


def _decoded(data: str) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise StreamError(f"{constant} is no JSON: {data}")

    try:
        body = json.loads(data, parse_constant=refuse)
    except ValueError as error:
        raise StreamError(f"not JSON: {data}") from error
    need(isinstance(body, dict), "an event is an object", data)
    return dict(body)
