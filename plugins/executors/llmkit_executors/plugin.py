"""Entry point of the executors; imported in every process, so without torch."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import Executor, ExecutorSpec, RegisterExecutor


@hookimpl
def register_executors(register: RegisterExecutor) -> None:
    register("uniproc", make_uniproc, refuses=refuses_uniproc, priority=10)


def make_uniproc(spec: ExecutorSpec, options: Any) -> Executor:
    from llmkit.worker import limit_spinning

    limit_spinning()  # before the next import loads torch
    if spec.config.scheduler.async_scheduling:
        from llmkit_executors.threaded import ThreadedExecutor

        return ThreadedExecutor(spec)
    from llmkit_executors.uniproc import UniprocExecutor

    return UniprocExecutor(spec)


def refuses_uniproc(spec: ExecutorSpec) -> str | None:
    ranks = spec.config.parallel.tensor_parallel_size
    if ranks > 1:
        return f"--tensor-parallel-size is {ranks}; it runs one rank, in the engine's own process"
    return None
