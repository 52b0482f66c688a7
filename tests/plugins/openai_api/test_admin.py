"""The routes behind ``--enable-admin-routes``."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from llmkit.config import Config, ObservabilityConfig
from llmkit.errors import EngineError
from tests.core.server.local_front import LocalFront, server_config, serving

HI = {"messages": [{"role": "user", "content": "hi"}]}
CALLS = (
    ("GET", "/server_info"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
)


def admin_config(**server: Any) -> Config:
    config = server_config(enable_admin_routes=True, **server)
    return dataclasses.replace(config, observability=ObservabilityConfig(profiler_dir="/t"))


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_off_by_default_and_behind_the_key(method: str, path: str) -> None:
    front = LocalFront()
    async with serving(front) as client:
        answer = await client.request(method, path)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "admin_routes_off"
        assert "--enable-admin-routes" in answer.json()["error"]["message"]
        assert path not in (await client.get("/openapi.json")).json()["paths"]
    front = LocalFront(admin_config(api_key=("k",)))
    async with serving(front) as client:
        assert (await client.request(method, path)).status_code == 401
    assert front.engine.calls == []


async def test_all_of_them_answer() -> None:
    front = LocalFront(admin_config())
    async with serving(front) as client:
        assert set(dict.fromkeys(path for _, path in CALLS)) <= set(
            (await client.get("/openapi.json")).json()["paths"]
        )
        for call in ("reset_prefix_cache", "start_profile"):
            answer = await client.post(f"/{call}")
            assert (answer.status_code, answer.content) == (200, b"")
        assert (await client.post("/stop_profile")).json() == {"traces": ["/t/trace"]}
    assert [call[1] for call in front.engine.calls] == ["reset_prefix_cache", "start_profile", "stop_profile"]


async def test_server_info_has_every_setting_and_no_secret() -> None:
    front = LocalFront(admin_config(api_key=("a secret",)))
    async with serving(front) as client:
        client.headers["Authorization"] = "Bearer a secret"
        info = (await client.get("/server_info?config_format=json")).json()
        text = (await client.get("/server_info")).json()["vllm_config"]
        wrong = await client.get("/server_info?config_format=xml")
    assert info["vllm_config"]["server"]["api_key"] is True
    assert info["vllm_config"]["server"]["port"] == 8000
    assert info["engine"]["num_blocks"] == 65
    assert "server: " in text
    assert "a secret" not in text
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "config_format")


async def test_requests_are_refused_until_all_is_awake() -> None:
    front = LocalFront(admin_config())
    async with serving(front) as client:
        assert (await client.post("/sleep?level=2")).status_code == 200
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        refused = await client.post("/v1/chat/completions", json=HI)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
        assert "/wake_up" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert (await client.get("/health")).status_code == 200
        front.engine.answers["wake_up"] = ["kv_cache"]
        assert (await client.post("/wake_up?tags=weights")).status_code == 200
        assert (await client.post("/v1/chat/completions", json=HI)).status_code == 503
        front.engine.answers["wake_up"] = []
        assert (await client.post("/wake_up?tags=weights&tags=kv_cache")).status_code == 200
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await client.post("/v1/chat/completions", json=HI)).status_code == 200
    assert front.engine.calls == [
        ("engine", "sleep", 2),
        ("engine", "wake_up", ["weights"]),
        ("engine", "wake_up", ["weights", "kv_cache"]),
    ]


async def test_a_sleep_waits_for_nobody() -> None:
    front = LocalFront(admin_config())
    front.says("a", hang_after=0)
    async with serving(front) as client:
        task = asyncio.create_task(client.post("/v1/chat/completions", json=HI))
        while not front.engine.running:
            await asyncio.sleep(0.005)
        answer = await client.post("/sleep")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "busy")
        front.says("b")
        assert (await client.post("/v1/chat/completions", json=HI)).status_code == 200
        task.cancel()
        while front.engine.running:
            await asyncio.sleep(0.005)
        assert (await client.post("/sleep")).status_code == 200


async def test_a_sleep_that_fails_leaves_the_door_open() -> None:
    front = LocalFront(admin_config())
    front.engine.answers["sleep"] = EngineError("this executor cannot sleep")
    async with serving(front) as client:
        answer = await client.post("/sleep")
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "this executor cannot sleep")
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await client.post("/v1/chat/completions", json=HI)).status_code == 200


@pytest.mark.parametrize(
    ("call", "param"),
    [("/sleep?level=3", "level"), ("/sleep?level=x", "level"), ("/wake_up?tags=all", "tags")],
)
async def test_wrong_arguments_are_named(call: str, param: str) -> None:
    front = LocalFront(admin_config())
    async with serving(front) as client:
        answer = await client.post(call)
    assert answer.status_code == 400
    assert param in answer.json()["error"]["message"]
    assert front.engine.calls == []


async def test_profiles_need_a_directory_and_take_turns() -> None:
    config = server_config(enable_admin_routes=True)
    async with serving(LocalFront(config)) as client:
        answer = await client.post("/start_profile")
        assert (answer.status_code, "--profiler-dir" in answer.json()["error"]["message"]) == (400, True)
    async with serving(LocalFront(admin_config())) as client:
        assert (await client.post("/stop_profile")).status_code == 409
        assert (await client.post("/start_profile")).status_code == 200
        assert (await client.post("/start_profile")).status_code == 409
