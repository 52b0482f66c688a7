"""Sleep: an engine that gives its memory back for a while and answers nothing until it is awake."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.contracts.executor import Executor
from llmkit.contracts.scheduler import Scheduler
from llmkit.messages import SLEEP_TAGS


class Sleep:
    """Owns what of an engine sleeps. The engine has no request and no step in flight when it is called.

    Levels and tags are ``messages.SLEEP_LEVELS`` and ``SLEEP_TAGS``; who calls has checked them.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, inner: Sequence[Sleep] = ()) -> None:
        """``inner``: of engines inside this one, such as a draft model's, which do as it does."""
        self._scheduler = scheduler
        self._executor = executor
        self._inner = inner
        self._asleep: set[str] = set()

    @property
    def asleep(self) -> list[str]:
        """Tags of what sleeps; nothing runs until it is empty."""
        return [tag for tag in SLEEP_TAGS if tag in self._asleep]

    def sleep(self, level: int) -> None:
        """What sleeps already stays so; the prefix cache forgets everything.

        :raises EngineError: the executor cannot.
        """
        self._scheduler.reset_prefix_cache()
        self._executor.call("sleep", level)
        self._asleep.update(SLEEP_TAGS if level == 2 else ("kv_cache",))
        for inner in self._inner:
            inner.sleep(level)

    def wake_up(self, tags: Sequence[str]) -> None:
        """What is awake stays so. One that fails may be tried again.

        :raises LlmkitError: the executor cannot; the checkpoint is gone.
        """
        for inner in self._inner:
            inner.wake_up(tags)
        if self._asleep.intersection(tags):
            self._executor.call("wake_up", list(tags))
            self._asleep.difference_update(tags)
