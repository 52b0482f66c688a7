"""Answers of a batch: a file that only grows, and that says what is done after whatever happened."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llmkit.errors import UsageError
from llmkit_cli.batch.lines import Line


class Output:
    """Appends answers, in the order in which they come; what :meth:`write` has returned from is on disk.

    Owns the file. A last line that was cut, as when the program was killed, is taken back on opening.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        """:raises UsageError: there are answers already and nobody asked to go on, or they are no answers."""
        self._path = path
        if not resume and path.exists() and path.stat().st_size:
            raise UsageError(
                f"--output-file {str(path)!r} has answers already; go on with --resume, or name another file"
            )
        self.done: set[str] = set()
        """``Line.key`` of each request that is answered."""
        self.failed = 0
        """Answers that are errors."""
        try:
            end = self._take_stock() if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(end)
        except OSError as error:
            raise UsageError(f"--output-file {str(path)!r} cannot be written: {error}") from None
        self._waiting: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    async def write(self, line: Line, answer: dict[str, Any]) -> None:
        """Append ``answer`` to ``line``; returns when it is on disk. Several at once share one sync."""
        self._note(line.key, answer)
        self._waiting.append(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        while self._writing is not None:
            await asyncio.shield(self._writing)
        if self._waiting:
            self._writing = asyncio.create_task(self._flush())
            await asyncio.shield(self._writing)

    async def _flush(self) -> None:
        data, self._waiting = b"".join(self._waiting), []
        try:
            await asyncio.to_thread(self._append, data)
        finally:
            self._writing = None

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _note(self, key: str, answer: dict[str, Any]) -> None:
        self.done.add(key)
        response = answer["response"]
        self.failed += response is None or response["status_code"] >= 400

    def _take_stock(self) -> int:
        """Notes what is answered; gives the end of the last whole line."""
        end = 0
        with self._path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                if not data.endswith(b"\n"):
                    break
                end += len(data)
                try:
                    answer = json.loads(data)
                    custom_id = answer["custom_id"]
                    key = answer["id"].partition("_")[2] if custom_id is None else f"id {custom_id}"
                    self._note(key, answer)
                except (ValueError, LookupError, TypeError, AttributeError):
                    raise UsageError(
                        f"--output-file {str(self._path)!r}: line {number} is no answer of a batch"
                    ) from None
        return end


def answered(line: Line, status: int, request_id: str, body: Any) -> dict[str, Any]:
    """What a server said, in OpenAI's shape."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": _id(line), "custom_id": line.custom_id, "response": response, "error": None}


def refused(line: Line, message: str) -> dict[str, Any]:
    """A line that no server was asked about."""
    error = {"code": "invalid_line", "message": message}
    return {"id": _id(line), "custom_id": line.custom_id, "response": None, "error": error}


def _id(line: Line) -> str:
    """Lines without a name are known by their number when a batch is resumed."""
    return f"batchline_{line.key}" if line.custom_id is None else f"batch_req_{uuid.uuid4().hex}"
