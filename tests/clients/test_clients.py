"""Third parties' clients against a real server; ``make test-clients`` installs and runs them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmkit.testing.http import ServerProcess
from tests.acceptance.conftest import Scripted
from tests.acceptance.test_tool_calls import SPECIAL, TEMPLATE

CLIENTS = os.environ.get("LLMKIT_TEST_CLIENTS")
"""A Python that has them."""
pytestmark = pytest.mark.skipif(
    CLIENTS is None, reason="LLMKIT_TEST_CLIENTS names no Python that has the clients: make test-clients"
)
DRIVE = Path(__file__).with_name("drive.py")
CITY = {"city": "Bern", "people": 144000}


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCRIPT = {
    "rules": [
        {"match": "18 degrees", "text": "It is 18 degrees."},
        {"match": "weather-case", "text": call("get_weather", {"city": "Bern"})},
        {"match": "json-case", "text": json.dumps(CITY), "delay_ms": 10},
        {"match": "partial-case", "text": call("PartialCity", CITY), "delay_ms": 10},
        {"match": "call-case", "text": call("City", CITY), "delay_ms": 10},
    ]
}
each_client = pytest.mark.parametrize(
    "client", ["langchain", "llama-index", "instructor", "pydantic-ai", "llm"]
)


@pytest.fixture(scope="module")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Scripted(tmp_path_factory.mktemp("s"))
    flags = ["--tool-call-parser=hermes", "--enable-auto-tool-choice"]
    yield servers.start(*flags, script=SCRIPT, model={"chat_template": TEMPLATE, "special": SPECIAL})
    servers.close()


@pytest.fixture(scope="module")
def small_model() -> Iterator[ServerProcess]:
    flags = ["--max-model-len=2048", "--tool-call-parser=hermes"]
    with ServerProcess(["smollm2-135m", *flags], ready_timeout_s=240) as server:
        yield server


@each_client
def test_a_call_and_its_result(scripted_server: ServerProcess, client: str) -> None:
    got = drive(scripted_server, client, "tiny", "round_trip")
    assert got["called"] == "Bern"
    assert got["answer"] == "It is 18 degrees."


@each_client
def test_streamed_structured_output(scripted_server: ServerProcess, client: str) -> None:
    got = drive(scripted_server, client, "tiny", "structured")
    assert got["city"] == CITY
    assert got["pieces"] >= 1


@each_client
def test_a_forced_call_of_the_small_model(small_model: ServerProcess, client: str) -> None:
    assert drive(small_model, client, "smollm2-135m", "forced")["called"] in ("Bern", "Basel")


def drive(server: ServerProcess, client: str, model: str, task: str) -> dict[str, Any]:
    assert CLIENTS is not None
    command = [CLIENTS, str(DRIVE), client, f"{server.url}/v1", model, task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    got: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return got
