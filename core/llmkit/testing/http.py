"""For tests of HTTP routes: a checker of the grammar of streams, and a real server as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_HEAD = ("id", "object", "created", "model", "system_fingerprint")
_OBJECTS = ("chat.completion.chunk", "text_completion")


class StreamError(AssertionError):
    """A stream breaks the grammar; the message quotes the line."""


@dataclass(slots=True)
class StreamedCall:
    """One call of a tool, by its index."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class StreamedChoice:
    """One choice put together from its chunks."""

    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    """Chat: entries of ``content``. Completions: (token, logprob) pairs."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    reasoning: str = ""
    calls: list[StreamedCall] = field(default_factory=list)


@dataclass(slots=True)
class StreamedAnswer:
    """What a valid stream said."""

    choices: dict[int, StreamedChoice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of the only choice."""
        (choice,) = self.choices.values()
        return choice.text


def validate_stream(lines: Iterable[str]) -> StreamedAnswer:
    """Check a stream of chat or plain completions, line by line as an HTTP client gives them.

    The grammar: frames of one ``data:`` line and a blank one; one id, object, time and model in all; for each
    index (chat) the role once and first, pieces, one finish chunk with an empty delta and nothing after it;
    calls in the order of their indices, each with id, type and name once and first; at most one usage chunk,
    with no choices, behind all of them; ``[DONE]`` last. Other chunks have a usage all of them or none: of
    their choice, and it never falls. Comments may stand between frames.
    Or an ``error`` object last, without ``[DONE]``.

    :raises StreamError: the first line that breaks it.
    """
    answer, reader = StreamedAnswer(), _Grammar()
    for data in _payloads(lines):
        reader.read(data, answer)
    reader.end(answer)
    return answer


class _Grammar:
    """What has been seen of one stream."""

    def __init__(self) -> None:
        self._head: tuple[Any, ...] | None = None
        self._over = False
        self._used: dict[int, int] = {}
        """Choice -> its tokens as the last of its chunks counts them, where chunks do."""

    def read(self, data: str, answer: StreamedAnswer) -> None:
        _need(not self._over, "nothing follows the end", data)
        if data == "[DONE]":
            self._over = True
            _need(bool(answer.chunks), "[DONE] alone says nothing", data)
            open_choices = [i for i, choice in answer.choices.items() if choice.finish_reason is None]
            _need(not open_choices, f"choices {open_choices} have no finish_reason", data)
            return
        chunk = _decoded(data)
        if "error" in chunk:
            _need(set(chunk["error"]) == {"message", "type", "param", "code"}, "an error object", data)
            answer.error, self._over = chunk["error"], True
            return
        self._check_head(chunk, data)
        answer.chunks.append(chunk)
        _need(answer.usage is None, "usage is the last chunk", data)
        usage = None if chunk.get("usage") is None else _usage(chunk, data)
        if usage is not None and not chunk["choices"]:
            counted = sum(self._used.values())
            _need(counted <= usage["completion_tokens"], "usage counts what chunks have counted", data)
            answer.usage = usage
            return
        _need(len(chunk["choices"]) == 1, "one choice a chunk, and none in the usage chunk", data)
        self._count(chunk["choices"][0]["index"], usage, first=len(answer.chunks) == 1, data=data)
        self._read_choice(chunk, chunk["choices"][0], answer, data)

    def _count(self, index: int, usage: dict[str, Any] | None, *, first: bool, data: str) -> None:
        _need(first or (usage is not None) == bool(self._used), "all chunks have a usage or none", data)
        if usage is not None:
            _need(usage["completion_tokens"] >= self._used.get(index, 0), "usage never falls", data)
            self._used[index] = usage["completion_tokens"]

    def end(self, answer: StreamedAnswer) -> None:
        _need(self._over, "the stream ends with [DONE] or an error", "")

    def _check_head(self, chunk: dict[str, Any], data: str) -> None:
        head = tuple(chunk.get(name) for name in _HEAD)
        _need(None not in head, f"every chunk has {', '.join(_HEAD)}", data)
        _need(chunk["object"] in _OBJECTS, f"object is one of {_OBJECTS}", data)
        _need(self._head in (None, head), f"{_HEAD} are the same in every chunk", data)
        self._head = head

    def _read_choice(
        self, chunk: dict[str, Any], part: dict[str, Any], answer: StreamedAnswer, data: str
    ) -> None:
        chat = chunk["object"] == "chat.completion.chunk"
        first = part["index"] not in answer.choices
        choice = answer.choices.setdefault(part["index"], StreamedChoice())
        _need(choice.finish_reason is None, "nothing follows a choice's finish chunk", data)
        delta = part["delta"] if chat else {"content": part["text"]}
        if chat:
            _need(("role" in delta) == first, "the role is in a choice's first chunk and only there", data)
            _need(delta.get("role", "assistant") == "assistant", "the role is assistant", data)
        if part["finish_reason"] is not None:
            _need(part["finish_reason"] in FINISH_REASONS, "a finish_reason of OpenAI's", data)
            _need(delta == ({} if chat else {"content": ""}), "a finish chunk has an empty delta", data)
            choice.finish_reason, choice.stop_reason = part["finish_reason"], part.get("stop_reason")
            return
        choice.text += delta.get("content") or ""
        reasoning = delta.get("reasoning_content")
        _need(reasoning == delta.get("reasoning"), "reasoning is the same under both names", data)
        choice.reasoning += reasoning or ""
        for part_of_call in delta.get("tool_calls") or ():
            _read_call(choice.calls, part_of_call, data)
        choice.logprobs += _logprobs(part["logprobs"], chat)


def _read_call(calls: list[StreamedCall], part: dict[str, Any], data: str) -> None:
    function = part["function"]
    opens = part["index"] == len(calls)
    _need(opens or part["index"] == len(calls) - 1, "calls come in the order of their indices", data)
    told = [name in part for name in ("id", "type")] + ["name" in function]
    _need(told == [opens] * 3, "id, type and name are in the first piece of a call and only there", data)
    if opens:
        _need(part["type"] == "function" and bool(part["id"]), "a call has an id and is a function", data)
        _need(part["id"] not in [call.id for call in calls], "ids of calls differ", data)
        calls.append(StreamedCall(part["id"], function["name"], ""))
    calls[-1].arguments += function["arguments"]


def _payloads(lines: Iterable[str]) -> Iterable[str]:
    blank_due = False
    for line in lines:
        if line == "":
            blank_due = False
        elif not line.startswith(":"):
            _need(not blank_due, "a blank line ends each event", line)
            _need(line.startswith("data: "), "a line is 'data: ' and a payload", line)
            blank_due = True
            yield line.removeprefix("data: ")


def _decoded(data: str) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise StreamError(f"{constant} is no JSON: {data}")

    try:
        chunk = json.loads(data, parse_constant=refuse)
    except ValueError as error:
        raise StreamError(f"not JSON: {data}") from error
    _need(isinstance(chunk, dict), "a chunk is an object", data)
    return dict(chunk)


def _usage(chunk: dict[str, Any], data: str) -> dict[str, Any]:
    usage: dict[str, Any] = chunk["usage"]
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    _need(usage["total_tokens"] == total, "total_tokens is the sum", data)
    return usage


def _logprobs(logprobs: dict[str, Any] | None, chat: bool) -> list[Any]:
    if logprobs is None:
        return []
    if chat:
        return list(logprobs["content"])
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))


def _need(holds: bool, rule: str, line: str) -> None:
    if not holds:
        raise StreamError(f"{rule}; got: {line[:2000]}")


# ---- a server ----


class ServerProcess:
    """``llmkit serve`` as a process of its own on a free port, killed by its id whatever happens.

    ``with ServerProcess([model, "--executor", ...]) as server:`` waits until ``/health`` is 200.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = 120.0,
        command: Sequence[str] | None = None,
        wait: bool = True,
    ) -> None:
        """``command`` stands before ``arguments``; by default it is this Python's ``llmkit serve``."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        start = list(command or (sys.executable, "-m", "llmkit_cli.main", "serve"))
        self._command = [*start, *arguments, "--port", str(self.port)]
        self._environment = {**os.environ, "NO_PROXY": "127.0.0.1", **(environment or {})}
        self._ready_timeout_s = ready_timeout_s
        self._wait = wait
        self._log = tempfile.NamedTemporaryFile(prefix="llmkit-serve-", suffix=".log")  # noqa: SIM115
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )
        if self._wait:
            try:
                self.wait_until_ready()
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def log(self) -> str:
        """All it has written so far, without colours."""
        text = Path(self._log.name).read_text(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    @property
    def children(self) -> list[int]:
        """Ids of its child processes: the engine's, and those of executors."""
        listing = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in listing.split()]

    def health(self) -> tuple[int, dict[str, Any]] | None:
        """Status and body of ``/health``; None where nothing answers."""
        try:
            with _OPENER.open(f"{self.url}/health", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except (OSError, ValueError):
            return None

    def metrics(self) -> dict[str, float]:
        """``/metrics`` by name without its prefix, series of one name added up; no buckets."""
        with _OPENER.open(f"{self.url}/metrics", timeout=30) as answer:
            return read_metrics(answer.read().decode())

    def wait_until_ready(self) -> None:
        """:raises AssertionError: it ended, or took too long; with its log."""
        assert self.process is not None, "not started"
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            health = self.health()
            if health is not None and health[0] == 200:
                return
            assert self.process.poll() is None, f"exit code {self.process.returncode}:\n{self.log}"
            time.sleep(0.05)
        raise AssertionError(f"not ready after {self._ready_timeout_s:g} s:\n{self.log}")

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Send a signal and wait; gives the exit code."""
        assert self.process is not None, "not started"
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def _end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


def read_metrics(text: str) -> dict[str, float]:
    """What ``/metrics`` says, as :meth:`ServerProcess.metrics` gives it."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^(?:\w+:)?(\w+)(?:{.*})? (\S+)$", text, re.MULTILINE):
        if not name.endswith("_bucket"):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
