"""JSON bodies that mean one thing and cost little to read, before a route reads them.

Python's parser takes NaN, the last of two equal keys, and as many values as come; one body of ``[[],[],...``
would hold the event loop for seconds.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmkit.server.asgi import header, refuse, replay
from llmkit.server.errors import Failure

MAX_DEPTH = 256
MAX_MEMBERS = 1 << 18
"""Objects, lists and keys of objects, together: they are what costs time."""
MAX_VALUES = 1 << 20
LARGE_BYTES = 256 << 10
"""From here on a body is looked over in a thread, before it is parsed."""
_STRUCTURAL = np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(b"[]{},:", np.uint8))
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class StrictJson:
    """ASGI middleware: 400 for a JSON body that is ambiguous, not JSON in spite of Python, or too intricate.

    What is no JSON at all is left to the route, and so is a body of another type.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS") or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        while not messages or messages[-1].get("more_body", False):
            messages.append(await receive())
        failure = await fault(b"".join(message.get("body", b"") for message in messages))
        if failure is not None:
            await refuse(failure, scope, receive, send)
            return
        await self._app(scope, replay(messages, receive), send)


async def fault(body: bytes) -> Failure | None:
    """What is wrong with ``body`` as JSON of one meaning; None also where it is none at all."""
    large = len(body) > LARGE_BYTES
    if large or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        failure = await asyncio.to_thread(intricacy, body) if large else intricacy(body)
        if failure is not None:
            return failure
    try:
        json.loads(body, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except _Twins as twins:
        return _bad(f"the body has an object with the key {_short(twins.key)} twice", twins.key)
    except _Constant as constant:
        key = _where(body)
        place = "the body has" if key is None else f"{_short(key)} is"
        return _bad(f"{place} {constant}, which JSON does not know; a number must be finite", key)
    except (ValueError, RecursionError):
        return None  # the route says so, in its own words
    return None


def intricacy(body: bytes) -> Failure | None:
    """Which bound the structure of a JSON text passes. Of a text that is no JSON it may say anything."""
    text = np.frombuffer(body, np.uint8)
    places = np.flatnonzero(_STRUCTURAL[text] & ~_in_strings(text))
    marks = text[places]
    opened = (marks == ord("[")) | (marks == ord("{"))
    closed = (marks == ord("]")) | (marks == ord("}"))
    commas, colons = marks == ord(","), marks == ord(":")
    depth = np.cumsum(opened.astype(np.int8) - closed, dtype=np.int32)
    containers = int(opened.sum())
    members, values = containers + int(colons.sum()), containers + int(commas.sum())
    if depth.max(initial=0) > MAX_DEPTH:
        where, problem = int(depth.argmax()), f"is nested too deeply: it may have at most {MAX_DEPTH} levels"
    elif members > MAX_MEMBERS:
        where = _densest(commas & (depth == 1))
        problem = f"has too many objects, lists and keys; a body may have at most {MAX_MEMBERS}"
    elif values > MAX_VALUES:
        where = _densest(commas & (depth == 1))
        problem = f"has too many values; a body may have at most {MAX_VALUES}"
    else:
        return None
    key = _field_at(body, places, commas & (depth == 1), colons & (depth == 1), where)
    return _bad(f"{key or 'the body'} {problem}", key)


def _densest(fields: npt.NDArray[np.bool_]) -> int:
    """A mark within the field that has most of them; ``fields`` are the commas between fields."""
    ends = np.concatenate([[-1], np.flatnonzero(fields), [fields.size]])
    longest = int(np.diff(ends).argmax())
    return int(ends[longest]) + 1


def _field_at(
    body: bytes,
    places: npt.NDArray[np.intp],
    fields: npt.NDArray[np.bool_],
    colons: npt.NDArray[np.bool_],
    mark: int,
) -> str | None:
    """The key of the body's field that a mark is in; None where the body has no fields."""
    first = int(fields[:mark].nonzero()[0].max(initial=0))
    found = np.flatnonzero(colons[first:])
    if not found.size:
        return None
    start, end = int(places[first]) + 1, int(places[first + int(found[0])])
    try:
        key = json.loads(body[start:end])
    except (ValueError, RecursionError):
        return None
    return key if isinstance(key, str) else None


def _in_strings(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which bytes are within quotes; an opening quote is, a closing one is not."""
    quotes = text == _QUOTE
    slashes = np.flatnonzero(text == _BACKSLASH)
    if slashes.size:
        # Of a run of backslashes each second one escapes what follows it.
        starts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        lengths = np.diff(starts, append=slashes.size)
        odd_ends = slashes[starts + lengths - 1][lengths % 2 == 1] + 1
        quotes[odd_ends[odd_ends < text.size]] = False
    inside: npt.NDArray[np.bool_] = np.logical_xor.accumulate(quotes)
    return inside


# ---- what Python's parser calls ----


class _Twins(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class _Constant(ValueError):
    """Its text is the constant."""


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise _Twins(key)
        seen.add(key)


def _no_constant(name: str) -> Any:
    raise _Constant(name)


class _Found(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _where(body: bytes) -> str | None:
    """The innermost key whose value is, or lists, no finite number."""

    def look(pairs: Sequence[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if _lists_no_number(value):
                raise _Found(key)

    try:
        json.loads(body, object_pairs_hook=look)
    except _Found as found:
        return found.key
    except ValueError:
        pass  # something else is wrong too, further on
    return None


def _lists_no_number(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_lists_no_number, value))
    return isinstance(value, float) and not math.isfinite(value)


# ---- small things ----


def _is_json(scope: Scope) -> bool:
    kind = header(scope, b"content-type").partition(b";")[0].strip().lower()
    return kind in (b"", b"application/json") or kind.endswith(b"+json")


def _bad(message: str, param: str | None = None) -> Failure:
    return Failure(400, message, "invalid_request_error", None if param is None else param[:60])


def _short(key: str) -> str:
    return repr(key[:60])
