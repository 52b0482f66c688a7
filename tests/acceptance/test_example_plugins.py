"""Third-party packages on a real server: an attention backend, routes, and three that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.testing import bytes_tokenizer, tiny
from llmkit.testing.http import ServerProcess
from tests.core.distributions import EXAMPLES, install_project

BROKEN = ("broken-import", "other-api", "takes-name")
INT8 = ("--attn=int8-kv", "--plugin-option=int8-kv.per_head=true")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name in ("hello", "int8-kv", *BROKEN):
        install_project(folder, EXAMPLES / name)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny")
    bytes_tokenizer.write(directory)
    tiny.build(directory, "LlamaForCausalLM", vocab_size=bytes_tokenizer.VOCAB_SIZE)
    return str(directory)


@pytest.fixture(scope="module")
def ample(site: Path, model: str) -> Iterator[ServerProcess]:
    """The int8 backend with all the blocks it wants, and the broken three installed beside it."""
    with ServerProcess([model, *INT8], environment={"PYTHONPATH": str(site)}) as server:
        yield server


def complete(server: ServerProcess, prompt: list[int], tokens: int = 40) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def prompt(seed: int, length: int = 32) -> list[int]:
    return [(7 * place + 13 * seed) % 256 for place in range(length)]


def test_int8_kv_serves_and_copies_blocks(ample: ServerProcess) -> None:
    first = complete(ample, prompt(1))
    again = complete(ample, prompt(1))
    assert again["choices"] == first["choices"]
    # All 32 tokens are in two full blocks: the last one is copied, so that only one token is computed.
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 31


def test_int8_kv_gives_the_same_text_when_preempted(ample: ServerProcess, site: Path, model: str) -> None:
    few = [*INT8, "--num-gpu-blocks-override=13", "--max-model-len=96", "--no-enable-prefix-caching"]
    with ServerProcess([model, *few], environment={"PYTHONPATH": str(site)}) as server:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda seed: complete(server, prompt(seed)), range(4)))
        assert server.metrics()["num_preemptions_total"] > 0
        assert server.metrics()["kv_blocks_held"] == 0
    for seed, answer in enumerate(answers):
        assert answer["choices"] == complete(ample, prompt(seed))["choices"]


def test_broken_plugins_are_listed_with_their_cause_while_the_server_serves(site: Path, model: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(site)}
    with ServerProcess([model], environment={"PYTHONPATH": str(site)}) as server:
        assert complete(server, prompt(1), 2)["usage"]["completion_tokens"] == 2
        listed = subprocess.run(
            [sys.executable, "-m", "llmkit_cli.main", "plugins", "list", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert (rows["int8-kv"]["state"], rows["int8-kv"]["registered"]) == ("idle", ["attention:int8-kv"])
    assert (rows["broken-import"]["state"], rows["other-api"]["state"]) == ("failed", "refused")
    assert (rows["takes-name"]["state"], rows["takes-name"]["registered"]) == ("refused", [])
    assert "99.0" in rows["other-api"]["cause"]
    assert "'paged-cpu'" in rows["takes-name"]["cause"]
    assert "'cpu-paged'" in rows["takes-name"]["cause"]
    assert "ModuleNotFoundError" in rows["broken-import"]["cause"]
    assert rows["cpu-paged"]["state"] == "loaded"


def test_broken_plugins_stay_out_when_a_search_for_a_name_imports_them(site: Path, model: str) -> None:
    with ServerProcess([model, "--attn=int8-kv"], environment={"PYTHONPATH": str(site)}) as server:
        assert complete(server, prompt(1), 2)["usage"]["completion_tokens"] == 2
        for name in BROKEN:
            assert f"plugin '{name}'" in server.log


def test_strict_plugins_stops_the_start_with_every_name(site: Path, model: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "llmkit_cli.main", "serve", model, "--attn=int8-kv", "--strict-plugins"],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    for name in BROKEN:
        assert name in ended.stderr


def test_a_route_is_there_only_when_enabled_and_needs_the_key(site: Path, model: str) -> None:
    environment = {"PYTHONPATH": str(site)}
    key = {"Authorization": "Bearer k"}
    with ServerProcess([model, "--api-key=k"], environment=environment) as server:
        assert httpx.get(f"{server.url}/hello", headers=key).status_code == 404
    enabled = [model, "--api-key=k", "--plugin=hello", "--plugin-option=hello.greeting=Bonjour"]
    with ServerProcess(enabled, environment=environment) as server:
        assert httpx.get(f"{server.url}/hello").status_code == 401
        answer = httpx.get(f"{server.url}/hello", headers=key, params={"name": "Ada"})
        assert answer.json()["message"] == "Bonjour, Ada!"


def test_a_command_of_a_plugin(site: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "llmkit_cli.main", "hello", "--name", "Ada"],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Hello, Ada!" in ran.stdout
