"""Entry point: the scheduling policies that ship with llmkit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmkit import hookimpl
from llmkit.contracts import RegisterPolicy, SchedulerConfig, SchedulingPolicy


@dataclass(frozen=True)
class Options:
    """Filled by ``--plugin-option schedulers.KEY=VALUE``."""

    aging_s: float = 60.0
    """Policy ``priority``: seconds of waiting that are worth one level of priority."""

    def __post_init__(self) -> None:
        if not 1e-3 <= self.aging_s <= 1e9:
            raise ValueError(f"aging_s is {self.aging_s}; it must be 0.001 to 1e9 seconds")


@hookimpl
def register_scheduling_policies(register: RegisterPolicy) -> None:
    register("fcfs", _fcfs)
    register("priority", _priority)
    register("fair", _fair)


def _fcfs(config: SchedulerConfig, options: Any) -> SchedulingPolicy:
    from llmkit_schedulers.fcfs import FirstComeFirstServed

    return FirstComeFirstServed()


def _priority(config: SchedulerConfig, options: Options) -> SchedulingPolicy:
    from llmkit_schedulers.priority import Priority

    return Priority(options.aging_s)


def _fair(config: SchedulerConfig, options: Any) -> SchedulingPolicy:
    from llmkit_schedulers.fair import Fair

    return Fair()
