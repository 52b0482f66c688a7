"""The engine core and the in-process client, over executors that work, fail and lag."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from llmkit.contracts import (
    PLACEHOLDER,
    EngineReady,
    FinishReason,
    SamplePlan,
    StepOutput,
    StepPlan,
    StepResult,
)
from llmkit.engine.client_inproc import InprocClient
from llmkit.engine.core import EngineCore
from llmkit.errors import EngineError
from llmkit.messages import Call, CallAnswer
from llmkit.testing.scripted import Rule, Script, ScriptedExecutor

from .harness import Engine, make_request, make_scheduler


def make_core(*rules: Rule) -> EngineCore:
    return EngineCore(make_scheduler(), ScriptedExecutor(Script(rules=rules)))


READY = EngineReady(64, 512, 64, 4, 0, 0, ())


def test_requests_run_to_their_ends_in_process() -> None:
    client = InprocClient(make_core(Rule(match="A", text="xyz")), READY)
    client.add(make_request("a", b"A", 9, eos_ids=(256,)))
    client.add(make_request("b", b"hi", 9, eos_ids=(256,)))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    ends = {}
    for output in client.outputs():
        tokens[output.request_id] += output.token_ids
        ends[output.request_id] = output.finish
    assert tokens == {"a": [*b"xyz", 256], "b": [*b"hi", 256]}
    assert set(ends.values()) == {FinishReason.STOP}
    assert client.stats.blocks_held == 0
    client.close()
    client.close()


def test_a_request_may_be_aborted_while_outputs_come() -> None:
    client = InprocClient(make_core(), READY)
    client.add(make_request("a", b"hello", 50))
    client.add(make_request("b", b"hello", 5))
    ends = {}
    for output in client.outputs():
        if output.request_id == "a" and output.finish is None:
            client.abort(["a"])
        if output.finish:
            ends[output.request_id] = output.finish
    assert ends == {"a": FinishReason.ABORT, "b": FinishReason.LENGTH}


def test_a_request_that_cannot_be_queued_ends_alone() -> None:
    client = InprocClient(make_core(), READY)
    client.add(make_request("bad", [], 1))
    client.add(make_request("good", b"x", 1))
    outputs = {output.request_id: output for output in client.outputs()}
    assert outputs["bad"].finish == FinishReason.ERROR
    assert "0 tokens" in (outputs["bad"].error or "")
    assert outputs["good"].finish == FinishReason.LENGTH


def test_a_failed_step_ends_every_open_request_once() -> None:
    core = make_core(Rule(match="boom", raise_at=1))
    core.add(make_request("a", b"boom", 5))
    core.add(make_request("b", b"fine", 5))
    core.step()
    with pytest.raises(EngineError, match="token 1 fails"):
        core.step()
    assert [(o.request_id, o.finish, o.error) for o in core.fail("it broke")] == [
        ("a", FinishReason.ERROR, "it broke"),
        ("b", FinishReason.ERROR, "it broke"),
    ]
    assert core.fail("again") == []


def test_nothing_to_do() -> None:
    core = make_core()
    assert not core.has_work
    assert core.step() is None


class Lagging(ScriptedExecutor):
    """Answers a step only when the next one was launched, or none can be."""

    max_concurrent_batches = 2
    most = 0
    launched = 0

    def sample(self, handle: StepPlan, plan: SamplePlan) -> Future[StepResult]:
        self.launched += 1
        self.most = max(self.most, self.launched)
        inner = super().sample(handle, plan)
        outer = self

        class Counting(Future[StepResult]):
            def result(self, timeout: float | None = None) -> StepResult:
                outer.launched -= 1
                return inner.result(timeout)

        return Counting()


def test_several_steps_may_be_in_flight() -> None:
    executor = Lagging()
    core = EngineCore(make_scheduler(max_num_batched_tokens=4), executor)
    core.add(make_request("a", b"0123456789", 3))
    core.add(make_request("b", b"01234567", 3))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    while core.has_work:
        step = core.step()
        for output in step.outputs if step else ():
            tokens[output.request_id] += output.token_ids
    assert tokens == {"a": [*b"012"], "b": [*b"012"]}
    assert executor.most == 2


def test_calls_are_answered_and_hurt_nobody() -> None:
    core = make_core()
    client = InprocClient(core, READY)
    client.add(make_request("a", b"hello world", 3))
    outputs = client.outputs()
    next(outputs)
    assert client.call("engine", "reset_prefix_cache") is False  # a request runs
    for target, method in (("engine", "shutdown"), ("engine", "__init__"), ("workers", "nothing")):
        with pytest.raises(EngineError, match=method):
            client.call(target, method)
    with pytest.raises(EngineError, match="no method"):
        client.call("engine", "reset_prefix_cache", 1)
    assert len(list(outputs)) == 2
    assert client.call("engine", "reset_prefix_cache") is True
    hit = client.stats.prefix_hits
    client.add(make_request("b", b"hello world", 1))
    assert [output.cached_tokens for output in client.outputs()] == [0]
    assert client.stats.prefix_hits == hit


def test_an_engine_sleeps_without_requests_and_takes_none_until_all_is_awake() -> None:
    asked: list[tuple[object, ...]] = []

    class Sleeper(ScriptedExecutor):
        def call(self, method: str, *args: object) -> list[object]:
            asked.append((method, *args))
            return super().call(method, *args)

    client = InprocClient(EngineCore(make_scheduler(), Sleeper()), READY)
    client.add(make_request("a", b"hello world", 3))
    outputs = client.outputs()
    next(outputs)
    with pytest.raises(EngineError, match="1 requests are under way"):
        client.call("engine", "sleep", 1)
    assert len(list(outputs)) == 2
    assert client.call("engine", "sleep", 2) == ["weights", "kv_cache"]
    assert client.call("engine", "sleep", 1) == ["weights", "kv_cache"]
    client.add(make_request("b", b"hello world", 1))
    (refused,) = client.outputs()
    assert "sleeps" in str(refused.error)
    assert client.call("engine", "wake_up", ["weights"]) == ["kv_cache"]
    assert client.call("engine", "asleep") == ["kv_cache"]
    assert client.call("engine", "wake_up", ["weights", "kv_cache"]) == []
    assert asked == [
        ("sleep", 2),
        ("sleep", 1),
        ("wake_up", ["weights"]),
        ("wake_up", ["weights", "kv_cache"]),
    ]
    with pytest.raises(EngineError, match="for the engine"):
        client.call("workers", "sleep", 1)
    client.add(make_request("c", b"hello world", 1))
    assert [output.cached_tokens for output in client.outputs()] == [0]


def test_what_workers_are_still_to_be_told_they_are_told_before_the_sleep() -> None:
    client = InprocClient(make_core(), READY)
    client.add(make_request("a", b"hello world", 1))
    assert next(client.outputs()).finish is not None
    client.call("engine", "sleep", 2)
    assert not list(client.outputs())
    assert client._core.step() is None


def test_engines_inside_sleep_and_wake_up_with_theirs() -> None:
    inner = make_core()
    core = EngineCore(inner._scheduler, ScriptedExecutor(), inner=[inner])
    client = InprocClient(core, READY)
    client.call("engine", "sleep", 1)
    assert inner._sleep.asleep == ["kv_cache"]
    client.call("engine", "wake_up", ["kv_cache"])
    assert inner._sleep.asleep == []


def test_a_worker_method_that_fails_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(ScriptedExecutor):
        def call(self, method: str, *args: object) -> list[object]:
            if method == "raise":
                raise KeyError("oops")
            return [object()]

    client = InprocClient(EngineCore(make_scheduler(), Odd(Script())), READY)
    with pytest.raises(EngineError, match="KeyError"):
        client.call("workers", "raise")
    with pytest.raises(EngineError, match="TypeError"):  # no plain value: it could not be sent
        client.call("workers", "answer")


def test_a_plan_follows_while_a_step_runs() -> None:
    """Step N + 1 is launched before the result of step N is asked for, and names what that samples."""
    log: list[str] = []
    engine = Engine(overlapped=True)
    execute, update = engine.executor.execute, engine.scheduler.update

    def logged_execute(plan: StepPlan) -> Any:
        named = any(PLACEHOLDER in row.token_ids for row in plan.rows)
        log.append(f"launch {plan.step}{' on a placeholder' if named else ''}")
        return execute(plan)

    def logged_update(result: StepResult) -> list[StepOutput]:
        log.append(f"book {result.step}")
        return update(result)

    engine.executor.execute = logged_execute  # type: ignore[method-assign]
    engine.scheduler.update = logged_update  # type: ignore[method-assign]
    engine.add(make_request("a", [1, 2, 3], 4))
    engine.run()
    assert log[:-2] == [
        "launch 1",
        "launch 2 on a placeholder",
        "book 1",
        "launch 3 on a placeholder",
        "book 2",
        "launch 4 on a placeholder",
        "book 3",
        "book 4",
    ]
    assert log[-2:] == ["launch 5", "book 5"], "the workers are told that it is gone"


@pytest.mark.parametrize("overlapped", [False, True])
def test_the_prefix_cache_is_reset_between_steps(overlapped: bool) -> None:
    engine = Engine(overlapped=overlapped)
    prompt = list(range(16))
    engine.add(make_request("first", prompt, 1))
    engine.run()
    engine.add(make_request("second", prompt, 12))
    engine.step()
    assert engine.core.call(Call(1, "engine", "reset_prefix_cache")) == CallAnswer(1, False)
    engine.run()
    assert engine.last["second"].cached_tokens == 15
    assert len(engine.tokens["second"]) == 12, "what a call waited for is not lost"
    assert engine.core.call(Call(2, "engine", "reset_prefix_cache")) == CallAnswer(2, True)
    engine.add(make_request("third", prompt, 1))
    engine.run()
    assert engine.last["third"].cached_tokens == 0


def test_what_a_call_waited_for_comes_before_whatever_ends_the_request() -> None:
    engine = Engine(overlapped=True)
    engine.add(make_request("long", [3] * 5, 20), make_request("short", [4] * 5, 1))
    engine.step()
    engine.add(make_request("late", [5] * 5, 1))
    engine.step()
    before = len(engine.tokens["long"])
    engine.core.call(Call(1, "engine", "reset_prefix_cache"))
    engine.take(engine.core.abort(["long"]))
    assert len(engine.tokens["long"]) == before + 1
    assert engine.last["long"].finish is FinishReason.ABORT
    assert engine.last["late"].finish is FinishReason.LENGTH
    engine.run()


def test_who_ended_before_the_engine_failed_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(overlapped=True)
    engine.add(make_request("done", [4] * 5, 2), make_request("open", [3] * 5, 9))
    engine.step()
    engine.core.call(Call(1, "engine", "reset_prefix_cache"))
    monkeypatch.setattr(engine.executor, "execute", _fail)
    with pytest.raises(EngineError, match="broken"):
        engine.core.step()
    outputs = engine.core.fail("broken")
    assert [(output.request_id, output.finish) for output in outputs] == [
        ("done", FinishReason.LENGTH),
        ("open", None),
        ("open", FinishReason.ERROR),
    ]


def _fail(plan: StepPlan) -> None:
    raise EngineError("broken")
