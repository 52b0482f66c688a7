"""The scripted executor does what its script says, behind the real scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmkit.contracts import EngineReady, SamplingParams, StepOutput
from llmkit.engine.client_inproc import InprocClient
from llmkit.engine.core import EngineCore
from llmkit.errors import EngineError, StartupError
from llmkit.testing.scripted import Rule, Script, ScriptedExecutor, read_script

from ..engine.harness import make_request, make_scheduler

READY = EngineReady(64, 512, 64, 4, 0, 0, ())


def run(script: Script, prompt: bytes, max_tokens: int = 20, **fields: Any) -> list[StepOutput]:
    client = InprocClient(EngineCore(make_scheduler(), ScriptedExecutor(script)), READY)
    fields.setdefault("eos_ids", (256,))
    client.add(make_request("a", prompt, max_tokens, **fields))
    return list(client.outputs())


def ids(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize(
    ("script", "prompt", "fields", "expected"),
    [
        pytest.param(Script(), b"echo", {}, [*b"echo", 256], id="echo"),
        pytest.param(Script((Rule(match="b", text="x"),)), b"abc", {}, [*b"x", 256], id="a-rule-fits"),
        pytest.param(Script((Rule(match="z", text="x"),)), b"abc", {}, [*b"abc", 256], id="no-rule-fits"),
        pytest.param(Script((Rule(match_ids=(98, 99), tokens=(7,)),)), b"abc", {}, [7, 256], id="ids-fit"),
        pytest.param(
            Script((Rule(match_ids=(99, 98), tokens=(7,)),)), b"abc", {}, [*b"abc", 256], id="ids-do-not"
        ),
        pytest.param(Script(default=Rule(text=("p", "q"))), b"abc", {}, [*b"pq", 256], id="default"),
        pytest.param(Script(default=Rule(text="pq")), b"abc", {"max_tokens": 1}, [*b"p"], id="cut-off"),
        pytest.param(Script(default=Rule(text="é")), b"a", {}, [0xC3, 0xA9, 256], id="utf-8"),
        pytest.param(
            Script(default=Rule(text="pq")), b"a", {"eos_ids": (), "max_tokens": 5}, [*b"pqpqp"], id="no-end"
        ),
        pytest.param(
            Script(default=Rule(text="p"), eos_id=300),
            b"a",
            {"eos_ids": (256, 300)},
            [*b"p", 300],
            id="which-end",
        ),
        pytest.param(
            Script(default=Rule(text="p")),
            b"a",
            {"params": SamplingParams(min_tokens=3)},
            [*b"ppp", 256],
            id="min",
        ),
        pytest.param(Script(default=Rule()), b"a", {}, [256], id="ends-at-once"),
    ],
)
def test_tokens(script: Script, prompt: bytes, fields: dict[str, Any], expected: list[int]) -> None:
    assert ids(run(script, prompt, **fields)) == expected


def test_logprobs_are_made_up_but_well_formed() -> None:
    outputs = run(Script(default=Rule(text="p")), b"a", params=SamplingParams(logprobs=2), max_tokens=1)
    (position,) = outputs[0].logprobs or []
    assert position.sampled == position.top[0]
    assert [entry.rank for entry in position.top] == [1, 2]
    assert run(Script(), b"a", max_tokens=1)[0].logprobs is None
    outputs = run(Script(), b"a", params=SamplingParams(logprobs=0), max_tokens=1)
    assert outputs[0].logprobs is not None
    assert outputs[0].logprobs[0].top == ()


def test_it_fails_where_it_is_told() -> None:
    with pytest.raises(EngineError, match="token 2 fails"):
        run(Script(default=Rule(text="abc", raise_at=2)), b"a")


def test_it_hangs_where_it_is_told() -> None:
    executor = ScriptedExecutor(Script(default=Rule(text="abc", hang_at=1)))
    scheduler = make_scheduler()
    scheduler.add(make_request("a", b"a"))
    for expected in (True, False):
        plan = scheduler.schedule()
        from llmkit.contracts import SamplePlan

        future = executor.sample(executor.execute(plan), SamplePlan(plan.step))
        assert future.done() == expected
        if expected:
            scheduler.update(future.result())
    executor.shutdown(0)
    assert future.cancelled()


def test_scripts_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"rules": [{"match": "a", "text": ["b", "c"]}], "eos_id": 3}))
    assert read_script(path) == Script((Rule(match="a", text=("b", "c")),), eos_id=3)
    path.write_text('{"rules": [{"matches": "a"}]}')
    with pytest.raises(StartupError, match="matches"):
        read_script(path)
    with pytest.raises(StartupError, match="nowhere"):
        read_script(tmp_path / "nowhere")


def test_a_script_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(StartupError, match="vocabulary of 300"):
        ScriptedExecutor(Script(default=Rule(tokens=(300,)), vocab_size=300)).start(lambda phase, part: None)
