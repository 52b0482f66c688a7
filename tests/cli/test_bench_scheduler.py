"""``llmkit bench scheduler``: traces, what a replay gives, and that a step costs what its rows cost."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llmkit import UsageError
from llmkit.config import CacheConfig, Config, SchedulerConfig
from llmkit_cli.bench.scheduler_engine import StepCost, build_simulated
from llmkit_cli.bench.scheduler_replay import MAX_POINTS, Course, Point, Replay, replay
from llmkit_cli.bench.scheduler_report import summarize
from llmkit_cli.bench.scheduler_trace import Poisson, Prompts, TraceRequest, longest, read_trace
from tests.cli.conftest import Run


def run(trace: list[TraceRequest], *, blocks: int = 400, seats: int = 8, policy: str = "fcfs") -> Replay:
    config = Config(
        cache=CacheConfig(num_gpu_blocks_override=blocks),
        scheduler=SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=256, scheduling_policy=policy),
    )
    return replay(*build_simulated(config, StepCost(1.0, 0.0), context=longest(trace)), trace)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_every_request_of_a_load_ends(policy: str) -> None:
    load = Poisson(60, 0.5, 40, 12, prefix_tokens=32, prefixes=3, callers=4).trace()
    result = run(load, policy=policy)
    stats = result.stats
    assert stats.generated_tokens == sum(entry.output_tokens for entry in load)
    assert stats.prompt_tokens + stats.prefix_hits == sum(entry.prompt_tokens for entry in load)
    assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)
    for entry in result.served:
        assert entry.entry.arrival_s <= entry.started_s < entry.first_token_s <= entry.ended_s
    # All beginnings but each one's first time, so far as it is there by then.
    assert stats.prefix_hits > 32 * 20


def test_a_replay_is_the_same_every_time() -> None:
    load = Poisson(30, 1.0, 20, 90, callers=2).trace()
    first, second = run(load, blocks=40), run(load, blocks=40)
    assert first.stats == second.stats
    assert first.stats.preemptions > 0, "blocks were meant to run out"
    assert first.served == second.served


def test_time_is_the_models() -> None:
    """Three requests at once in two seats, a second a step: prompt, then a token a step."""
    load = [TraceRequest(arrival_s=0.0, prompt_tokens=10, output_tokens=3) for _ in range(3)]
    times = [(e.started_s, e.first_token_s, e.ended_s) for e in run(load, seats=2).served]
    assert times == [(0, 1, 3), (0, 1, 3), (3, 4, 6)]


def test_an_idle_engine_waits_for_the_next_request() -> None:
    load = [TraceRequest(arrival_s=at, prompt_tokens=10, output_tokens=1) for at in (5.0, 100.0)]
    result = run(load)
    assert [entry.started_s for entry in result.served] == [5.0, 100.0]
    assert len(result.step_ms) <= 4


def test_callers_and_priorities_are_reported_apart() -> None:
    load = [
        TraceRequest(0.0, 10, 5, caller=f"c{number % 2}", priority=number % 3, prefix="x")
        for number in range(12)
    ]
    figures = summarize(run(load, policy="priority", seats=2))
    assert {name: group["requests"] for name, group in figures["callers"].items()} == {"c0": 6, "c1": 6}
    waits = [figures["priorities"][name]["wait_s"]["mean"] for name in ("0", "1", "2")]
    assert waits == sorted(waits)
    assert waits[0] < waits[2]


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    prompts = Prompts()
    one, two = TraceRequest(0.0, 100, 1, "a", 40), TraceRequest(0.0, 90, 1, "a", 40)
    other = TraceRequest(0.0, 100, 1, "b", 40)
    ids = [prompts.request(n, entry).prompt_ids for n, entry in enumerate((one, two, other))]
    assert [len(tokens) for tokens in ids] == [100, 90, 100]
    assert ids[0][:40] == ids[1][:40] != ids[2][:40]
    assert ids[0][40:56] != ids[1][40:56]
    long = TraceRequest(0.0, 300_000, 1)
    assert len(prompts.request(0, long).prompt_ids) == 300_000


def test_the_course_is_bounded_and_even() -> None:
    course = Course()
    for step in range(5 * MAX_POINTS):
        course.add(step, Point(float(step), 0, 0, 0, 0.0))
    times = [point.at_s for point in course.points]
    assert MAX_POINTS / 2 <= len(times) <= MAX_POINTS
    assert {second - first for first, second in pairwise(times)} == {course.stride}


def test_the_longest_queue_is_reported_though_the_course_leaves_it_out() -> None:
    step = MAX_POINTS + 1001
    load = [TraceRequest(0.0, 10, step + 10)] + [TraceRequest(float(step), 10, 1)] * 2
    result = run(load, seats=2)
    assert {point.waiting for point in result.course.points} == {0}
    assert summarize(result)["most_waiting"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param('{"arrival_s": 0, "prompt_tokens": 3}', "output_tokens", id="missing"),
        pytest.param('{"arrival_s": -1, "prompt_tokens": 3, "output_tokens": 1}', "arrival_s", id="negative"),
        pytest.param(
            '{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1, "x": 1}', "field `x`", id="unknown"
        ),
        pytest.param(
            '{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1, "prefix_tokens": 3}',
            "prefix_tokens is 3; it must be below prompt_tokens, 3",
            id="all-prefix",
        ),
        pytest.param("[1", "line 2", id="no-json"),
        pytest.param('"' + "x" * 70_000, "longer than 65536 bytes", id="long"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1}\n' + line + "\n")
    with pytest.raises(UsageError, match=message) as caught:
        read_trace(path)
    assert f"--trace {path}, line 2" in str(caught.value)


def test_a_trace_is_replayed_reported_and_drawn(llmkit: Run, tmp_path: Path) -> None:
    lines = [
        {"arrival_s": 20 - n, "prompt_tokens": 50 + n, "output_tokens": 5, "prefix": "p", "prefix_tokens": 32}
        for n in range(20)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ("bench", "scheduler", "--trace", "trace.jsonl", "--scheduling-policy", "fair")
    done = llmkit(*words, "--json", "-", "--plot", "course.png")
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert (figures["requests"], figures["policy"], figures["cached_tokens"]) == (20, "fair", 19 * 32)
    assert (tmp_path / "course.png").read_bytes().startswith(b"\x89PNG")
    shown = llmkit(*words)
    assert "prompt tokens cached" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kv-cache-memory-bytes", "1GiB"], "--num-gpu-blocks-override"),
        (["--input-len", "8", "--prefix-len", "8"], "--prefix-len is 8"),
        (["--num-gpu-blocks-override", "4"], "--num-gpu-blocks-override 4"),
        (["--num-gpu-blocks-override", "4"], "they take at least 31 blocks of 16 tokens"),
        (["--async-scheduling"], "--async-scheduling does not apply to this command"),
        (["--max-queue", "5"], "--max-queue does not apply to this command"),
        (["--max_tokens_per_key=5"], "the scheduler settings it takes --scheduler, --scheduling-policy"),
        (["--kv-connector", "offload"], "--kv-connector does not apply to this command"),
        (["--nope", "1"], "unknown flag --nope"),
        (["--scheduling-policy", "fare"], "did you mean 'fair'"),
        (["--trace", "nowhere.jsonl"], "--trace nowhere.jsonl: No such file"),
        (["--json", "nowhere/a.json"], "--json nowhere/a.json: no file can be written there"),
        (["--plot", "nowhere/a.png"], "--plot nowhere/a.png: no file can be written there"),
        (["--step-ms", "0", "--token-us", "0"], "--step-ms and --token-us are 0"),
    ],
)
def test_what_cannot_be_replayed_is_refused(llmkit: Run, words: list[str], message: str) -> None:
    done = llmkit("bench", "scheduler", *words)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_longest_request_fits_the_blocks_that_the_refusal_names(llmkit: Run) -> None:
    words = ("bench", "scheduler", "--num-prompts", "100", "--json", "-", "--num-gpu-blocks-override")
    least = re.search(r"at least (\d+) blocks", llmkit(*words, "2").stderr)
    assert least is not None
    done = llmkit(*words, least[1])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"] == 100


def test_of_a_servers_config_only_what_concerns_a_replay_counts(llmkit: Run, tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text(
        "async-scheduling: true\nmax-model-len: 16\nkv-cache-memory-bytes: 1GiB\nmax-queue: 1\n"
        "kv-connector: offload\nscheduling-policy: fair\n"
    )
    done = llmkit(
        "bench", "scheduler", "--config", "server.yaml", "--max_num_seqs=3", "--num-prompts=20", "--json=-"
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["policy"], figures["most_rows"]) == ("fair", 3)


# ---- what a step costs, counted in calls: the same on every machine ----


def calls_of_a_step(rows: int, waiting: int) -> int:
    """Function calls, Python's and C's, in one decode step of the engine."""
    config = Config(
        cache=CacheConfig(num_gpu_blocks_override=2 + (rows + 1) * 8),
        scheduler=SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=8192),
    )
    core, executor = build_simulated(config, StepCost(), context=128)
    prompts = Prompts()
    for number in range(rows + waiting):
        core.add(prompts.request(number, TraceRequest(0.0, 17, 100)))
    while executor.rows < rows or executor.tokens > rows:
        core.step()
    return _calls(core.step)


def _calls(function: Callable[[], object]) -> int:
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_step_costs_the_same_whoever_waits() -> None:
    assert calls_of_a_step(32, 4000) <= calls_of_a_step(32, 1) + 50


def test_a_step_costs_no_more_than_its_rows() -> None:
    few, many = calls_of_a_step(64, 0), calls_of_a_step(512, 0)
    assert many <= 8 * few + 100
    assert many / 512 < 60, "calls a row"
