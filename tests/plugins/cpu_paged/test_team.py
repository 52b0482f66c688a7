"""The threads that run kernels together."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from llmkit_cpu_paged import team as team_module
from llmkit_cpu_paged.team import Team


def test_every_thread_runs_the_function_once_a_run() -> None:
    team = Team(3)
    together = threading.Barrier(3)
    names: list[str] = []

    def work(word: str) -> None:
        together.wait(timeout=10)
        names.append(threading.current_thread().name + word)

    for _ in range(50):
        names.clear()
        team.run(work, ("!",))
        assert sorted(names) == ["MainThread!", "cpu-paged!", "cpu-paged!"]


@pytest.mark.parametrize("where", ["MainThread", "cpu-paged"])
def test_an_exception_reaches_the_caller_and_the_team_works_on(where: str) -> None:
    team = Team(2)

    def work(fail: bool) -> None:
        if fail and threading.current_thread().name == where:
            raise ValueError(where)

    for _ in range(3):
        with pytest.raises(ValueError, match=where):
            team.run(work, (True,))
        team.run(work, (False,))


def test_threads_end_with_the_team() -> None:
    before = set(threading.enumerate())
    team = Team(3)
    team.run(int, ())
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    del team
    gc.collect()
    for thread in started:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_a_team_of_one_starts_no_thread() -> None:
    before = threading.active_count()
    Team(1).run(int, ())
    assert threading.active_count() == before


def test_an_interrupt_while_it_waits_is_raised_once_helpers_have_returned() -> None:
    team = Team(3)
    asleep, returned = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> None:
        if threading.current_thread() is threading.main_thread():
            for _ in range(2):
                asleep.acquire(timeout=10)
            return
        asleep.release()
        time.sleep(0.2)
        returned.release()

    def interrupt() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        team.run(work, ())
    assert returned.acquire(blocking=False)
    assert returned.acquire(blocking=False)
    check_whole(team)


def test_an_interrupt_at_any_point_leaves_a_team_that_works() -> None:
    """KeyboardInterrupt after each bytecode of a run in turn, as Python delivers signals."""
    team = Team(3)
    for point in itertools.count():
        with interrupted_after(point) as reached:
            try:
                team.run(time.sleep, (1e-4,))
            except KeyboardInterrupt:
                assert reached()
        if not reached():
            break
        check_whole(team)
    assert point > 50, "the run was not interrupted"


@contextmanager
def interrupted_after(count: int) -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt in this thread after so many bytecodes of the team's own code."""
    left = count + 1

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != team_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield lambda: left <= 0
    finally:
        sys.settrace(None)


def check_whole(team: Team) -> None:
    """Two runs: each is in three threads at the same time, and over when ``run`` returns."""
    for _ in range(2):
        together = threading.Barrier(3)
        done: list[None] = []

        def work(together: threading.Barrier = together, done: list[None] = done) -> None:
            together.wait(timeout=10)
            done.append(None)

        team.run(work, ())
        assert len(done) == 3
