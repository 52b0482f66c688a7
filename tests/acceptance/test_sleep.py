"""Sleep: the engine's memory falls, nothing is answered meanwhile, and the text afterwards is equal."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from llmkit.testing import bytes_tokenizer, tiny
from llmkit.testing.http import ServerProcess

BLOCKS = 80
MANY = 1024
"""Tokens of a prompt that fills most of the pool."""
PROMPT = [*b"Sleep is a state of reduced activity." * 3]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Much KV and some weights for little arithmetic."""
    place = bytes_tokenizer.write(tmp_path_factory.mktemp("model") / "tiny")
    shape = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 8}
    return tiny.build(
        place, "LlamaForCausalLM", intermediate_size=4000, max_position_embeddings=MANY + 64, **shape
    )


class Sleeper:
    """A server, and what a test asks of it."""

    def __init__(self, server: ServerProcess, client: httpx.Client) -> None:
        (child,) = server.children
        self._engine = psutil.Process(child)
        self.client = client

    @property
    def rss(self) -> int:
        return self._engine.memory_info().rss

    def admin(self, call: str) -> httpx.Response:
        return self.client.post(call).raise_for_status()

    def fill(self, first: int) -> None:
        """Write to nearly every block."""
        self.ask([(first + i * i) % 256 for i in range(MANY)], 4)

    def ask(self, ids: list[int], tokens: int = 12) -> dict[str, Any]:
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        answer = self.client.post("/v1/completions", json=body).raise_for_status().json()
        return {
            "text": answer["choices"][0]["text"],
            "logprobs": answer["choices"][0]["logprobs"]["token_logprobs"],
            "cached": answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        }

    def is_sleeping(self) -> bool:
        return self.client.get("/is_sleeping").raise_for_status().json()["is_sleeping"]


@contextmanager
def sleeper(checkpoint: Path, *flags: str) -> Iterator[Sleeper]:
    own = ("--enable-admin-routes", "--deterministic", f"--num-gpu-blocks-override={BLOCKS}")
    with (
        ServerProcess([str(checkpoint), *own, *flags]) as server,
        httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client,
    ):
        yield Sleeper(server, client)


@pytest.fixture(scope="module")
def alone(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sleeper]:
    with sleeper(checkpoint, f"--profiler-dir={tmp_path_factory.mktemp('traces') / 'new'}") as engine:
        yield engine


def check(engine: Sleeper, levels: tuple[int, ...], models: int) -> None:
    info = engine.client.get("/server_info", params={"config_format": "json"}).raise_for_status().json()
    pool, weights = info["engine"]["kv_bytes"], info["engine"]["weight_bytes"]
    assert pool > 75 << 20
    before = engine.ask(PROMPT)
    for level in levels:
        engine.fill(level)
        full = engine.rss
        engine.admin(f"/sleep?level={level}")
        fell = full - engine.rss
        print(
            f"level {level}: {fell >> 20} MiB less; {models} pools of {pool >> 20}, weights {weights >> 20}"
        )
        assert fell > 0.8 * models * (pool if level == 1 else pool + weights)
        assert engine.is_sleeping()
        refused = engine.client.post("/v1/completions", json={"prompt": PROMPT})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
        assert engine.client.get("/health").status_code == 200
        assert engine.client.get("/v1/models").status_code == 200
        if level == 2:
            early = engine.client.post("/wake_up?tags=kv_cache")
            assert (early.status_code, early.json()["error"]["param"]) == (409, "tags")
            engine.admin("/wake_up?tags=weights")
            assert engine.is_sleeping(), "the KV cache is still to come"
        engine.admin("/wake_up")
        assert not engine.is_sleeping()
        assert engine.ask(PROMPT) == {**before, "cached": 0}
        assert engine.ask(PROMPT)["cached"] > 0


def test_memory_falls_and_the_text_afterwards_is_equal(alone: Sleeper) -> None:
    check(alone, (1, 2, 1), models=1)


def test_a_draft_model_sleeps_too(checkpoint: Path) -> None:
    with sleeper(checkpoint, "--speculator=draft", f"--draft-model={checkpoint}") as engine:
        check(engine, (1, 2), models=2)


def test_a_profile_is_written_where_the_flag_says(alone: Sleeper) -> None:
    assert alone.client.post("/stop_profile").status_code == 409
    alone.admin("/start_profile")
    assert alone.client.post("/start_profile").status_code == 409
    alone.ask([1, 2, 3], 4)
    (trace,) = alone.admin("/stop_profile").json()["traces"]
    assert Path(trace).parent.name == "new"
    events = json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]
    assert any(str(event.get("name", "")).startswith("aten::") for event in events)
