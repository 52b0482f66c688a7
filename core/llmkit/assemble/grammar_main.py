"""The process that compiles grammars: ``python -m llmkit.assemble.grammar_main``, started by the front.

Standard input is a socket: first what the front launches it with, then connections, one a grammar. Each is
answered by a fork, which has a deadline, little memory and low priority, and may crash. The process ends with
the front, when the socket does.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import numpy as np

from llmkit.assemble.launch import MAX_LAUNCH_BYTES, read_message
from llmkit.config import PluginConfig
from llmkit.contracts import CompiledGrammar, Grammar, GrammarBackend, GrammarSpec, StructuredOutput
from llmkit.frontend.grammars import DEADLINE_S, STARTED
from llmkit.messages import GrammarAnswer
from llmkit.plugins import load_plugins
from llmkit.registry import Registry

MEMORY_BYTES = 768 << 20
"""That one grammar may take beyond what the process has."""
REHEARSED_TOKENS = 64
"""Of an answer: what goes wrong on the way shows here rather than in the engine."""
MAX_QUESTION_BYTES = 1 << 20


class GrammarLaunch(msgspec.Struct, frozen=True):
    """All that a compiling process is started with."""

    plugins: PluginConfig
    backend: str
    """``--grammar-backend``."""
    spec: GrammarSpec


Backends = Sequence[tuple[str, GrammarBackend]]


def main() -> int:
    """Serve until the front is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # when to stop is the front's decision
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    with socket.socket(fileno=0) as control:
        launch = msgspec.msgpack.decode(
            read_message(control.recv, MAX_LAUNCH_BYTES, "launch"), type=GrammarLaunch
        )
        registry = load_plugins(launch.plugins, {"grammar": launch.backend}).registry
        backends = [
            (name, registry.create("grammar", name, launch.spec)) for name in _names(launch, registry)
        ]
        control.sendall(b"r")
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                return 0
            _serve(descriptors[0], launch.spec, backends)


def answer(wanted: StructuredOutput, spec: GrammarSpec, backends: Backends) -> GrammarAnswer:
    """Of the first backend that honours ``wanted``; the reasons of all where none does."""
    reasons: dict[str, str] = {}
    for name, backend in backends:
        try:
            data = backend.compile(wanted)
            rehearse(backend.load(data), spec)
        except Exception as error:  # noqa: BLE001 - a plugin's code in a process to be thrown away
            reasons[name] = (
                str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            )
        else:
            return GrammarAnswer(CompiledGrammar(name, data))
    if len(set(reasons.values())) == 1:
        return GrammarAnswer(refusal=next(iter(reasons.values())))
    told = (why if why.startswith(name) else f"{name}: {why}" for name, why in reasons.items())
    return GrammarAnswer(refusal="; ".join(told))


def rehearse(grammar: Grammar, spec: GrammarSpec) -> None:
    """Walk some way through an answer, taking allowed tokens here and there.

    :raises ValueError: nothing can be said, or there is no way on.
    """
    matcher = grammar.matcher()
    mask = np.zeros(-(-spec.vocab_size // 32), np.int32)
    ends = set(spec.eos_ids)
    for count in range(REHEARSED_TOKENS):
        mask[:] = 0
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        others = [token for token in allowed.tolist() if token not in ends]
        if not others:
            if not len(allowed):
                raise ValueError("no text that this model's tokens can spell satisfies it")
            if not count:
                raise ValueError("only the empty text satisfies it")
            return
        if not matcher.accept(others[count * 7919 % len(others)]):
            raise ValueError("the backend does not accept what its own mask allows")


def _names(launch: GrammarLaunch, registry: Registry) -> list[str]:
    if launch.backend != "auto":
        return [registry.choose("grammar", launch.backend, launch.spec).name]
    names = registry.usable("grammar", launch.spec)
    if not names:
        registry.choose("grammar", "auto", launch.spec)  # raises with every reason
    return names


def _serve(descriptor: int, spec: GrammarSpec, backends: Backends) -> None:
    child = os.fork()
    if child:
        os.close(descriptor)
        return
    # The child: whatever happens, it ends here.
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
        _limit()
        with socket.socket(fileno=descriptor) as connection:
            connection.sendall(STARTED)
            wanted = msgspec.msgpack.decode(
                read_message(connection.recv, MAX_QUESTION_BYTES, "question"), type=StructuredOutput
            )
            connection.sendall(msgspec.msgpack.encode(answer(wanted, spec, backends)))
    finally:
        os._exit(0)


def _limit() -> None:
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # where memory is short, this child goes rather than the server
        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, held + MEMORY_BYTES))


if __name__ == "__main__":
    sys.exit(main())
