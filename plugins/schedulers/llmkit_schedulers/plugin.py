"""Entry point: the scheduling policies that ship with llmkit."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import RegisterPolicy, SchedulerConfig, SchedulingPolicy


@hookimpl
def register_scheduling_policies(register: RegisterPolicy) -> None:
    register("fcfs", _fcfs)


def _fcfs(config: SchedulerConfig, options: Any) -> SchedulingPolicy:
    from llmkit_schedulers.fcfs import FirstComeFirstServed

    return FirstComeFirstServed()
