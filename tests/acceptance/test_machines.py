"""Machines as containers are: little memory, no home, nothing to write to, and Kubernetes' variables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.testing import bytes_tokenizer
from llmkit.testing.http import ServerProcess

GIB = 1 << 30
BLOCK_SIZE = 16
KV_SHARE = 0.25
"""Of the memory that the weights leave, on a CPU."""
NO_HOME = ["env", "-u", "HOME", "-u", "XDG_CACHE_HOME", sys.executable, "-m", "llmkit_cli.main", "serve"]


def kubernetes(service: str = "LLMKIT", port: int = 8000) -> dict[str, str]:
    """What a pod finds in its environment for a service of this name with a named port."""
    url = f"tcp://10.96.11.7:{port}"
    return {
        f"{service}_SERVICE_HOST": "10.96.11.7",
        f"{service}_SERVICE_PORT": str(port),
        f"{service}_SERVICE_PORT_HTTP": str(port),
        f"{service}_PORT": url,
        f"{service}_PORT_{port}_TCP": url,
        f"{service}_PORT_{port}_TCP_PROTO": "tcp",
        f"{service}_PORT_{port}_TCP_PORT": str(port),
        f"{service}_PORT_{port}_TCP_ADDR": "10.96.11.7",
    }


def cgroup(root: Path, memory_bytes: int) -> str:
    """A cgroup file system with this limit, in both of its versions."""
    files = {
        "memory.max": memory_bytes,
        "memory.current": 100 << 20,
        "cpu.max": "100000 100000",
        "memory/memory.limit_in_bytes": memory_bytes,
        "memory/memory.usage_in_bytes": 100 << 20,
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return str(root)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from llmkit.testing import tiny

    directory = bytes_tokenizer.write(tmp_path_factory.mktemp("tiny"))
    # A context so long that memory is what limits the number of blocks.
    shape: dict[str, Any] = {"vocab_size": bytes_tokenizer.VOCAB_SIZE, "max_position_embeddings": 1 << 15}
    tiny.build(directory, "LlamaForCausalLM", **shape)
    return str(directory)


def answer(server: ServerProcess) -> str:
    body = {"prompt": "ab", "max_tokens": 4, "temperature": 0}
    got = httpx.post(f"{server.url}/v1/completions", json=body, trust_env=False, timeout=60)
    assert got.status_code == 200, got.text
    text: str = got.json()["choices"][0]["text"]
    return text


def blocks(server: ServerProcess) -> int:
    return int(server.metrics()["kv_blocks_total"])


def test_the_kv_cache_follows_the_memory_of_the_container(tiny_model: str, tmp_path: Path) -> None:
    answers, sizes = set(), []
    for gib in (2, 1):
        environment = {**kubernetes(), "LLMKIT_CGROUP_ROOT": cgroup(tmp_path / str(gib), gib * GIB)}
        with ServerProcess([tiny_model, "--dtype=float32"], environment=environment) as server:
            sizes.append(blocks(server))
            answers.add(answer(server))
            assert blocks(server) == sizes[-1]
            assert "is no variable of llmkit" not in server.log
    layers, heads, head_size, number_bytes = 3, 2, 16, 4
    block_bytes = layers * 2 * heads * head_size * number_bytes * BLOCK_SIZE
    for size, gib in zip(sizes, (2, 1), strict=True):
        assert size * block_bytes == pytest.approx(KV_SHARE * gib * GIB, rel=0.01)
    assert len(answers) == 1


def test_no_home_and_nowhere_to_write(tiny_model: str, tmp_path: Path) -> None:
    """As under a read-only root and a user that the image does not know."""
    (tmp_path / "file").touch()
    with ServerProcess(
        [tiny_model],
        command=NO_HOME,
        environment={"LLMKIT_CACHE_DIR": str(tmp_path / "file" / "cache")},
        ready_timeout_s=300,
    ) as server:
        answer(server)
        assert "set LLMKIT_CACHE_DIR" in server.log
        assert "Traceback" not in server.log


def test_a_service_called_llmkit_changes_nothing(scripted: Any) -> None:
    # The server's own port is a flag here, so LLMKIT_PORT would show as an error.
    others = {**kubernetes("LLMKIT_METRICS", 9090), **kubernetes("LLMKIT_PREFILL", 80)}
    server = scripted.start(environment={**kubernetes(), **others})
    lines = [line for line in server.log.splitlines() if "environment:" in line]
    assert len(lines) == 1
    assert "Kubernetes sets for a service called llmkit" in lines[0]
    assert server.stop() == 0
