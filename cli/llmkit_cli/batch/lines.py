"""Batch files, line by line: what each asks, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmkit.errors import UsageError

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
)
"""What a line may ask for."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request, or what is wrong with it."""

    number: int
    """From 1."""
    custom_id: str | None
    """None: the line has none that can be read."""
    url: str = ""
    body: Any = None
    fault: str | None = None

    @property
    def key(self) -> str:
        """What names its answer in the output."""
        return f"line {self.number}" if self.custom_id is None else f"id {self.custom_id}"


def read_lines(path: Path) -> Iterator[Line]:
    """The requests of a batch file; blank lines are passed over.

    :raises UsageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                if data.strip():
                    yield _line(number, data)
    except OSError as error:
        raise UsageError(f"--input-file {str(path)!r} cannot be read: {error}") from None


def check_ids(path: Path) -> int:
    """How many requests there are. :raises UsageError: two of them have one ``custom_id``."""
    seen: dict[str, int] = {}
    count = 0
    for line in read_lines(path):
        count += 1
        if line.custom_id is None:
            continue
        first = seen.setdefault(line.custom_id, line.number)
        if first != line.number:
            raise UsageError(
                f"{path}: lines {first} and {line.number} have the same custom_id {line.custom_id!r}; answers"
                " could not be told apart"
            )
    return count


def _line(number: int, data: bytes) -> Line:
    try:
        asked = json.loads(data, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return Line(number, None, fault=f"line {number} is no JSON that can be read: {error}")
    custom_id = asked.get("custom_id") if isinstance(asked, dict) else None
    if not isinstance(custom_id, str) or not custom_id:
        return Line(number, None, fault=f"line {number} is no object with a custom_id, a text")
    return Line(number, custom_id, str(asked.get("url")), asked.get("body"), _fault(asked))


def _fault(asked: dict[str, Any]) -> str | None:
    if asked.get("method") != "POST":
        return f"method is {asked.get('method')!r}; it must be 'POST'"
    if asked.get("url") not in ROUTES:
        return f"url is {asked.get('url')!r}; it must be one of {', '.join(ROUTES)}"
    if not isinstance(asked.get("body"), dict):
        return "body must be an object"
    if asked["body"].get("stream"):
        return "body.stream is true; answers of a batch come whole"
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return made


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")
