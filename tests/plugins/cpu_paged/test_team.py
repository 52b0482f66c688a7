"""The threads that run kernels together."""

from __future__ import annotations

import gc
import threading

import pytest

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
