"""Structured output in the front: grammars compiled in a process of their own, before a request is queued."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from llmkit.config import LimitsConfig
from llmkit.contracts import CompiledGrammar, GrammarSpec, StructuredOutput, Tokenizer
from llmkit.errors import EngineError, RequestError
from llmkit.frontend.check import check_structured
from llmkit.frontend.parsing import Formats
from llmkit.frontend.threads import in_daemon_thread
from llmkit.lru import LruCache
from llmkit.messages import GrammarAnswer

PARAM = "structured"
"""The field that a refusal names; a route that has another name for it says that."""
DEADLINE_S = 1.5
"""For one grammar, from when its turn has come, for which it waits no longer than this either."""
MAX_COMPILING = 12
"""At once: of costly ones each may run to its deadline, so a burst of them must not queue up."""
MAX_CACHED = 512
MAX_CACHED_BYTES = 256 << 20
"""Of sources and of what they were compiled to."""
STARTED = b"s"
"""What a child says first: that somebody has the question."""
_START_S = 120.0
_LAST_WORDS_S = 0.25
"""Beyond the deadline: the child ends itself at it."""
_LENGTH_BYTES = 8


def grammar_spec(
    tokenizer: Tokenizer, eos_ids: tuple[int, ...], vocab_size: int, formats: Formats | None = None
) -> GrammarSpec:
    """The vocabulary that grammars are made for; the same in every process that makes it.

    ``vocab_size`` is the number of embedding rows. Takes a fraction of a second.
    """
    known = min(tokenizer.vocab_size, vocab_size)
    marks = {} if formats is None else {text: i for text, i in formats.marks.items() if i < known}
    ends = tuple(token_id for token_id in eos_ids if 0 <= token_id < vocab_size)
    special = frozenset({*(i for i in tokenizer.special_ids if i < known), *ends})
    silent = special.difference(marks.values())
    texts = [b"" if token_id in silent else tokenizer.token_bytes(token_id) for token_id in range(known)]
    return GrammarSpec(texts, special.union(marks.values()), ends, vocab_size, marks)


class GrammarCompiler:
    """Compiles what answers must be; owns the process that does so and the cache of its results.

    The process starts with the first grammar and again when it was killed. It forks for each one, so that
    what is too costly (time, memory) or crashes it ends a child alone: that request is refused and nothing
    else happens. Equal grammars are compiled once. Safe to use from several threads.
    """

    def __init__(self, launch: Callable[[], bytes], bounds: LimitsConfig) -> None:
        """``launch`` gives what ``assemble/grammar_main.py`` starts with; called with the first grammar."""
        self._bounds = bounds
        self._process = _Process(launch)
        self._room = threading.BoundedSemaphore(MAX_COMPILING)
        self._lock = threading.Lock()
        self._known = LruCache[StructuredOutput, Future[CompiledGrammar]](MAX_CACHED, MAX_CACHED_BYTES)

    async def compile(self, wanted: StructuredOutput) -> CompiledGrammar:
        """As :meth:`compile_now`, in a thread unless the result is at hand."""
        check_structured(wanted, self._bounds)
        with self._lock:
            known = self._known.get(wanted)
        if known is not None and known.done():
            return _result_of(known)
        return await in_daemon_thread(lambda: self.compile_now(wanted), "compile-grammar")

    def compile_now(self, wanted: StructuredOutput) -> CompiledGrammar:
        """:raises RequestError: it is wrong, cannot be honoured exactly, or is too costly.

        Within ``DEADLINE_S`` and a bit of its turn, once the process runs, whose start takes seconds.
        """
        check_structured(wanted, self._bounds)
        with self._lock:
            known = self._known.get(wanted)
            if known is None:
                outcome = Future[CompiledGrammar]()
                self._known.put(wanted, outcome, len(wanted.source))
        if known is not None:
            return _result_of(known)
        try:
            grammar = self._ask(wanted)
        except BaseException as error:  # noqa: BLE001 - raised again below
            outcome.set_exception(error)
            if not isinstance(error, _Refused):  # a deadline, a crash: may go well another time
                with self._lock:
                    self._known.pop(wanted)
        else:
            outcome.set_result(grammar)
            with self._lock:
                self._known.put(wanted, outcome, len(wanted.source) + len(grammar.data))
        return _result_of(outcome)

    def close(self) -> None:
        """End the process; idempotent. What is compiled meanwhile is refused."""
        self._process.close()

    def _ask(self, wanted: StructuredOutput) -> CompiledGrammar:
        if not self._room.acquire(timeout=DEADLINE_S):
            raise RequestError(
                "too many grammars are being compiled; try again", param=PARAM, code="queue_full", status=429
            )
        try:
            data = self._process.ask(msgspec.msgpack.encode(wanted))
        finally:
            self._room.release()
        if not data:
            raise RequestError(
                f"what {PARAM} asks for is too costly: it cannot be compiled within {DEADLINE_S:g} s and the"
                " memory one grammar may take",
                param=PARAM,
                code="invalid_value",
            )
        answer = msgspec.msgpack.decode(data, type=GrammarAnswer)
        if answer.grammar is None:
            raise _Refused(answer.refusal or "it was refused without a reason")
        return answer.grammar


def _result_of(outcome: Future[CompiledGrammar]) -> CompiledGrammar:
    """Errors are new ones each time: whoever gets one may put the client's own words in it."""
    try:
        return outcome.result()
    except RequestError as error:
        raise RequestError(str(error), param=error.param, code=error.code, status=error.status) from None


class _Refused(RequestError):
    """A grammar backend's lasting answer."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{PARAM}: {why}", param=PARAM, code="invalid_value")


class _Process:
    """The compiling process: started on first use, and again once it is gone."""

    def __init__(self, launch: Callable[[], bytes]) -> None:
        self._launch = launch
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def ask(self, question: bytes) -> bytes:
        """The answer, empty where the child ended without one or was not done in time.

        :raises EngineError: the process cannot be started.
        """
        for _ in range(2):
            data = self._ask_once(question)
            if data is not None:
                return data
        raise EngineError("the process that compiles grammars ends as soon as it is started")

    def _ask_once(self, question: bytes) -> bytes | None:
        """None where the process is gone, so that nobody has read the question."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                control = self._send(theirs)
            ours.settimeout(DEADLINE_S + _LAST_WORDS_S)
            data = bytearray()
            try:
                ours.sendall(len(question).to_bytes(_LENGTH_BYTES, "big") + question)
                while piece := ours.recv(1 << 16):
                    data += piece
            except TimeoutError:
                return b""
            except OSError:  # it ended in the middle of the question
                data.clear()
        if not data.startswith(STARTED):
            with self._lock:
                if self._control is control:
                    self._end()
            return None
        return bytes(data[len(STARTED) :])

    def close(self) -> None:
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # whoever waits for its start has the lock, and lets go at once
        with self._lock:
            self._end()

    def _send(self, job: socket.socket) -> socket.socket:
        """Hand one end of a job's connection to the process; gives the socket that it went through."""
        with self._lock:
            control = self._running()
            with contextlib.suppress(OSError):  # it is gone, which the job's own connection tells, too
                socket.send_fds(control, [b"j"], [job.fileno()])
            return control

    def _running(self) -> socket.socket:
        if self._closed:
            raise EngineError("the process that compiles grammars has been stopped")
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._end()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                compiler_command(), stdin=theirs.fileno(), start_new_session=True, env=_single_threaded()
            )
        self._control = ours
        payload = self._launch()
        ours.settimeout(_START_S)
        try:
            ours.sendall(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
            ready = ours.recv(1)
        except OSError as error:
            self._end()
            raise EngineError(f"the process that compiles grammars does not start: {error}") from error
        if ready != b"r":
            self._end()
            raise EngineError("the process that compiles grammars could not start; its output says why")
        return ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def compiler_command() -> list[str]:
    """The compiling process with this interpreter; it finds modules where this process does."""
    isolated = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    return [sys.executable, *isolated, "-m", "llmkit.assemble.grammar_main"]


def _single_threaded() -> dict[str, str]:
    """A process that forks has one thread."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1")}
