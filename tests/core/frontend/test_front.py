"""Front, engine client and engine process over real sockets and a real child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import msgspec
import psutil
import pytest

from llmkit.config import Config, SchedulerConfig
from llmkit.contracts import AddRequest, CheckpointInfo, Content, Finished, ModelFiles, SamplingParams, Tokens
from llmkit.errors import Draining, EngineDead, EngineError, ModelNotFound, StartupError
from llmkit.fold import fold_generation
from llmkit.frontend.engine_process import EngineDirectory, EngineProcess
from llmkit.frontend.front import Front, FrontState, ModelAtHand
from llmkit.frontend.services import FrontModel
from llmkit.types import FinishReason
from tests.core.frontend.fake_engine import BREAK, GARBAGE, HANG, Orders
from tests.core.frontend.toy_tokenizers import Bytes

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "tests.core.frontend.fake_engine"]
HANG_S = 60.0
"""How long to wait for what must happen before calling it a hang."""


@pytest.fixture(autouse=True)
def _private_temporary_directory(monkeypatch):
    """Where directories of engines appear, and must be gone after each test; short, for socket paths."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core")]))
        yield
        assert os.listdir(directory) == []


FILES = ModelFiles("/models/toy", "toy", "1")


def make_front(
    *,
    find=lambda progress: None,
    load_front=lambda: FrontModel(Bytes(), None, {}, (256,)),
    command=COMMAND,
    **orders,
):
    config = Config(scheduler=SchedulerConfig(max_num_seqs=2, max_queue=2))
    data = msgspec.msgpack.encode(Orders(**orders))
    payload = len(data).to_bytes(8, "big") + data

    def find_model(progress):
        find(progress)
        return ModelAtHand(FILES, CheckpointInfo("X", {}), payload, load_front)

    return Front(config, find_model, command=command)


@contextlib.asynccontextmanager
async def running(**orders):
    front = make_front(**orders)
    await front.start()
    try:
        await phase(front, "ready")
        yield front
    finally:
        await front.stop()


async def phase(front, wanted):
    async with asyncio.timeout(30):
        while front.state.phase != wanted:
            assert front.state.phase != "dead", front.state
            await asyncio.sleep(0.01)


def gone(pid):
    """An orphan whose new parent never waits stays in the process table, though it runs no more."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def request(name, first=97, max_tokens=3):
    return AddRequest(name, [first], SamplingParams(), 1, max_tokens)


async def test_from_start_to_text():
    front = make_front()
    assert front.services.config is not None
    with pytest.raises(EngineError, match="no generator yet"):
        _ = front.services.generator
    await front.start()
    assert front.state.phase == "starting"
    await phase(front, "ready")
    services = front.services
    assert services.model.names == ("toy",)
    assert services.model.max_model_len == 128
    pid, directory = front.engine_pid, front._directory.path
    assert directory.stat().st_mode & 0o777 == 0o700
    generation = await services.generator.submit("ab", SamplingParams(max_tokens=4))
    (choice,) = await fold_generation(generation, 1)
    assert (choice.text, choice.token_ids) == ("abcd", [97, 98, 99, 100])
    assert choice.finish == Finished(FinishReason.LENGTH)
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (2, 4)
    assert generation.usage.cached_tokens == 3
    assert services.stats().steps >= 4
    await front.stop()
    assert (front.state.phase, front.exit_code, front.died.is_set()) == ("dead", 0, False)
    assert gone(pid)
    await front.stop()  # again


async def test_several_choices_and_many_requests_keep_their_outputs_apart():
    async with running() as front:
        generator = front.services.generator
        both = await asyncio.gather(
            *(generator.submit([first], SamplingParams(max_tokens=20, n=2)) for first in (65, 97))
        )
        folded = await asyncio.gather(*(fold_generation(generation, 2) for generation in both))
        for first, choices in zip((65, 97), folded, strict=True):
            expected = "".join(chr(first + i) for i in range(20))
            assert [choice.text for choice in choices] == [expected] * 2
        assert both[0].usage.completion_tokens == 40
        assert both[0].usage.prompt_tokens == 1
        assert generator.in_flight == 0


async def test_kill_of_the_engine_ends_streams_and_the_front():
    async with running() as front:
        generation = await front.services.generator.submit([HANG], SamplingParams(max_tokens=9, n=2))
        direct = front._client.stream(request("direct", HANG))
        for _ in range(2):
            await anext(generation)
        await anext(direct)
        pid = front.engine_pid
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(HANG_S):
            ends = [event async for _, event in generation if isinstance(event, Finished)]
            with pytest.raises(EngineDead, match="SIGKILL"):
                await anext(direct)
            await front.died.wait()
        assert [end.reason for end in ends] == [FinishReason.ERROR] * 2
        assert "SIGKILL" in ends[0].error
        assert (front.state.phase, front.exit_code) == ("dead", 1)
        with pytest.raises(EngineDead):
            await front.services.generator.submit("a", SamplingParams())
        with pytest.raises(EngineDead):
            front._client.stream(request("late"))
        assert gone(pid)


@pytest.mark.parametrize(("first", "words"), [(BREAK, "no luck"), (GARBAGE, "cannot be read")])
async def test_an_engine_that_gives_up_is_quoted(first, words):
    async with running() as front:
        generation = await front.services.generator.submit([first], SamplingParams(max_tokens=2))
        events = [event async for _, event in generation]
        assert events[-1].reason is FinishReason.ERROR
        assert words in events[-1].error
        async with asyncio.timeout(10):
            await front.died.wait()
        assert front.exit_code == 1
        assert words in front.state.detail


async def test_closing_half_way_aborts_in_the_engine():
    async with running() as front:
        generation = await front.services.generator.submit([HANG], SamplingParams(max_tokens=9, n=2))
        await anext(generation)
        assert front.services.generator.in_flight == 2
        await generation.aclose()
        assert front.services.generator.in_flight == 0
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        await generation.aclose()
        async with asyncio.timeout(10):
            while front.services.stats().running or not front.services.stats().steps:
                await asyncio.sleep(0.01)
        assert front._client.open_streams == 0


async def test_closing_while_a_reader_waits_ends_the_reader():
    async with running() as front:
        generation = await front.services.generator.submit([HANG], SamplingParams(max_tokens=9))
        await anext(generation)
        await anext(generation)

        async def rest():
            return [event async for _, event in generation]

        reader = asyncio.create_task(rest())
        await asyncio.sleep(0.05)
        await generation.aclose()
        async with asyncio.timeout(5):
            assert await reader == []


async def test_calls_are_answered_each_with_its_own():
    async with running() as front:
        services = front.services
        answers = await asyncio.gather(*(services.call_workers("echo", at, "x") for at in range(5)))
        assert answers == [["workers", at, "x"] for at in range(5)]
        with pytest.raises(EngineError, match="no such method"):
            await services.reset_prefix_cache()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(services.call_workers("echo"), 0)
        assert await services.call_workers("echo") == ["workers"]
        with pytest.raises(EngineDead):
            await services.call_workers("die")


async def test_a_stop_string_aborts_in_the_engine_and_ends_the_text():
    async with running() as front:
        params = SamplingParams(max_tokens=100, stop=("cd",))
        generation = await front.services.generator.submit([97], params)
        events = [event async for _, event in generation]
        assert "".join(e.text for e in events if isinstance(e, Content)) == "ab"
        assert events[-1] == Finished(FinishReason.STOP, "cd")
        assert sum(len(e.token_ids) for e in events if isinstance(e, Tokens)) == 4
        assert generation.usage.completion_tokens == 4
        async with asyncio.timeout(10):
            while front.services.stats().running:
                await asyncio.sleep(0.01)


async def test_the_model_is_looked_for_before_the_engine_starts():
    found = threading.Event()

    def find(progress):
        progress("fetching the model", 0.4)
        assert found.wait(30)

    front = make_front(find=find)
    assert front.state.detail == "looking for the model"
    await front.start()
    async with asyncio.timeout(30):
        while front.state.fraction is None:
            await asyncio.sleep(0.01)
    assert front.state == FrontState("starting", "fetching the model", 0.4)
    assert (front.model, front.engine_pid) == (None, None)
    found.set()
    await phase(front, "ready")
    assert front.model.files == FILES
    await front.stop()


async def test_a_model_that_is_not_there_ends_the_front_before_it_began():
    def find(progress):
        raise ModelNotFound("no such model")

    front = make_front(find=find)
    await front.start()
    async with asyncio.timeout(30):
        await front.died.wait()
    assert isinstance(front.error, ModelNotFound)
    assert (front.state.phase, front.exit_code, front.engine_pid) == ("dead", 1, None)
    await front.stop()


async def test_stopping_while_the_model_is_looked_for_waits_for_nobody():
    never = threading.Event()
    front = make_front(find=lambda progress: never.wait(600))
    await front.start()
    await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        await front.stop()
    assert front.state.phase == "dead"
    never.set()


async def test_drain_lets_requests_end_and_takes_no_more():
    async with running() as front:
        generator, pid = front.services.generator, front.engine_pid
        generation = await generator.submit([40], SamplingParams(max_tokens=60))
        await anext(generation)
        draining = asyncio.create_task(front.drain(20))
        await phase(front, "draining")
        with pytest.raises(Draining):
            await generator.submit("a", SamplingParams())
        (choice,) = await fold_generation(generation, 1)
        assert choice.finish == Finished(FinishReason.LENGTH)
        await draining
        assert (front.state.phase, front.exit_code, front.died.is_set()) == ("dead", 0, False)
        assert gone(pid)


async def test_a_drain_before_the_engine_is_ready_just_stops():
    front = make_front(never_ready=True)
    await front.start()
    async with asyncio.timeout(30):
        while (front.state.detail, front.state.fraction) != ("loading weights", 0.5):
            await asyncio.sleep(0.01)
    pid = front.engine_pid
    await front.drain(20)
    assert front.state.phase == "dead"
    assert gone(pid)


async def test_an_engine_that_cannot_start_is_quoted_with_its_exit_code():
    front = make_front(fail="--attn nope: no attention backend is called 'nope'")
    await front.start()
    async with asyncio.timeout(30):
        await front.died.wait()
    assert (front.state.phase, front.exit_code) == ("dead", 2)
    assert "--attn nope" in front.state.detail
    assert "a traceback" in "".join(traceback.format_exception(front.error))
    assert "a traceback" not in front.state.detail
    await front.stop()


async def test_a_tokenizer_that_cannot_be_read_ends_the_engine_too():
    def broken():
        raise StartupError("tokenizer.json is corrupt")

    front = make_front(load_front=broken, never_ready=True)
    await front.start()
    async with asyncio.timeout(30):
        await front.died.wait()
    assert front.state.detail == "tokenizer.json is corrupt"
    await front.stop()
    assert gone(front.engine_pid)


@pytest.mark.parametrize("command", [["/no/such/program"], [sys.executable, "-c", "raise SystemExit(7)"]])
async def test_an_engine_program_that_does_not_run(command):
    front = make_front(command=command)
    await front.start()
    async with asyncio.timeout(30):
        await front.died.wait()
    assert front.exit_code == 1
    assert command[0] in front.state.detail or "exit code 7" in front.state.detail
    await front.stop()


@pytest.mark.parametrize("delay_s", [0, 0.005, 0.02, 0.1, 0.5])
async def test_stopping_at_any_moment_leaves_nothing(delay_s):
    front = make_front(load_front=lambda: time.sleep(600))
    await front.start()
    await asyncio.sleep(delay_s)
    await front.stop()
    assert front.state.phase == "dead"
    assert front.engine_pid is None or gone(front.engine_pid)


async def test_a_process_that_ignores_the_end_of_its_stdin_is_killed():
    code = "import time; time.sleep(600)"
    process = await EngineProcess.start([sys.executable, "-c", code], b"payload")
    await process.stop(0.05)
    assert process.exit_code == -signal.SIGKILL
    assert gone(process.pid)


def test_a_directory_too_long_for_sockets_is_refused_by_name(monkeypatch):
    with tempfile.TemporaryDirectory() as above:
        deep = Path(above, "d" * 100)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        with pytest.raises(StartupError, match="TMPDIR"):
            EngineDirectory("engine.out")
        assert list(deep.iterdir()) == []


def test_no_place_for_a_directory_is_said(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self/no-such-place")
    with pytest.raises(StartupError, match="set TMPDIR"):
        EngineDirectory("engine.out")


async def test_kill_of_the_front_ends_the_engine():
    """It sees the end of its standard input: no other process may hold the other end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.core.frontend.lone_front", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(HANG_S):
        pid = int(await process.stdout.readline())
        assert not gone(pid)
        process.kill()
        await process.wait()
    async with asyncio.timeout(HANG_S):
        while not gone(pid):
            await asyncio.sleep(0.01)
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)  # the fake engine does not clean up
    os.mkdir(tempfile.gettempdir())
