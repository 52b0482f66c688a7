"""Replaying a trace: the engine's own code, step by step, against a clock that only the model moves."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from llmkit.contracts import EngineStats, StepOutput
from llmkit.engine.core import EngineCore
from llmkit.errors import EngineError
from llmkit_cli.bench.scheduler_engine import SimulatedExecutor
from llmkit_cli.bench.scheduler_trace import Prompts, TraceRequest

MAX_POINTS = 4096
"""Of the course of a replay; every second is dropped when there are more."""


@dataclass(slots=True)
class Served:
    """What became of one request; simulated seconds since the trace's beginning."""

    entry: TraceRequest
    started_s: float = -1.0
    """When it was first in a step."""
    first_token_s: float = -1.0
    ended_s: float = -1.0


@dataclass(frozen=True, slots=True)
class Point:
    """The engine after a step."""

    at_s: float
    running: int
    waiting: int
    blocks_held: int
    cpu_ms: float


@dataclass(slots=True)
class Course:
    """Points spread evenly over the steps of a replay, however many these are."""

    points: list[Point] = field(default_factory=list)
    stride: int = 1

    def add(self, step: int, point: Point) -> None:
        if step % self.stride:
            return
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self.stride *= 2


@dataclass(frozen=True, slots=True)
class Replay:
    """All that a replay gave."""

    served: Sequence[Served]
    step_ms: array[float]
    """CPU time of the engine, a step each: planning, booking, encoding; not the model."""
    step_rows: array[int]
    add_s: float
    """CPU time of queueing all requests."""
    simulated_s: float
    course: Course
    most_waiting: int
    """Behind any step, also those that the course leaves out."""
    stats: EngineStats


def replay(core: EngineCore, executor: SimulatedExecutor, trace: Sequence[TraceRequest]) -> Replay:
    """Run the trace, in order of arrival, to its end.

    :raises EngineError: the scheduler has work and plans nothing, or loses a request.
    """
    served = [Served(entry) for entry in trace]
    prompts, encoder = Prompts(), msgspec.msgpack.Encoder()
    step_ms, step_rows, course = array("d"), array("l"), Course()
    now, add_s, added, idle_steps, most_waiting = 0.0, 0.0, 0, 0, 0
    while added < len(trace) or core.has_work:
        if not core.has_work:
            now = max(now, trace[added].arrival_s)
        while added < len(trace) and trace[added].arrival_s <= now:
            request = prompts.request(added, trace[added])
            began = time.thread_time()
            refused = core.add(request)
            add_s += time.thread_time() - began
            if refused:
                raise EngineError(f"request {added} of the trace: {refused[0].error}")
            added += 1
        before, own = executor.model_s, executor.own_s
        began = time.thread_time()
        step = core.step()
        encoder.encode(step)
        cpu_ms = (time.thread_time() - began - (executor.own_s - own)) * 1e3
        idle_steps = 0 if executor.rows else idle_steps + 1
        if idle_steps > 2:
            raise EngineError("the scheduler has work but plans nothing")
        began_s, now = now, now + executor.model_s - before
        _note(served, executor.new, step.outputs if step is not None else (), began_s, now)
        stats = core.stats
        most_waiting = max(most_waiting, stats.waiting)
        step_ms.append(cpu_ms)
        step_rows.append(executor.rows)
        course.add(len(step_ms) - 1, Point(now, stats.running, stats.waiting, stats.blocks_held, cpu_ms))
    if any(entry.ended_s < 0 for entry in served):
        raise EngineError("the scheduler has no work left, but not every request ended")
    return Replay(served, step_ms, step_rows, add_s, now, course, most_waiting, core.stats)


def _note(
    served: Sequence[Served],
    begun: Sequence[str],
    outputs: Sequence[StepOutput],
    began_s: float,
    ended_s: float,
) -> None:
    """What one step did for its requests."""
    for name in begun:
        entry = served[int(name[1:])]
        if entry.started_s < 0:
            entry.started_s = began_s
    for output in outputs:
        entry = served[int(output.request_id[1:])]
        if entry.first_token_s < 0:
            entry.first_token_s = ended_s
        if output.finish is not None:
            entry.ended_s = ended_s
