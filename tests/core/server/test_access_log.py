"""The access log: what it tells of a request, and what it never tells."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from llmkit.server import access_log
from tests.core.server.local_front import LocalFront, server_config, serving

CHAT = "/v1/chat/completions"
SECRET = "xyzzy"
BODY = {"messages": [{"role": "user", "content": SECRET}], "user": SECRET}


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the log gets."""
    found: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keeping()
    access_log.logger.addHandler(handler)
    access_log.logger.setLevel(logging.INFO)
    yield found
    access_log.logger.removeHandler(handler)


def config(form: str, **server: Any) -> Any:
    return server_config(access_log=form, api_key=("the-key",), **server)


async def test_each_request_is_one_object(lines: list[str]) -> None:
    front = LocalFront(config("json"))
    front.says(SECRET)
    async with serving(front) as client:
        headers = {"x-api-key": "the-key", "X-Request-Id": "r-1"}
        answer = await client.post(CHAT + f"?token={SECRET}", json=BODY, headers=headers)
        refused = await client.get("/v1/models")
        missing = await client.get("/a%0Ab c", headers=headers)
        streamed = await client.post(CHAT, json={**BODY, "stream": True}, headers=headers)
    found = [json.loads(line) for line in lines]
    assert [entry["status"] for entry in found] == [200, 401, 404, 200]
    first = found[0]
    assert set(first) == set(access_log.Access.__slots__)
    assert (first["method"], first["path"], first["request_id"]) == ("POST", CHAT, "r-1")
    assert (first["client"], first["bytes"]) == ("127.0.0.1", len(answer.content))
    assert first["caller"] == front.engine.requests[0].caller != ""
    assert first["duration_s"] >= 0
    assert found[1]["request_id"] == refused.headers["x-request-id"]
    assert found[1]["caller"] == ""
    assert missing.status_code == 404
    assert "\n" not in found[2]["path"]
    assert found[3]["bytes"] == len(streamed.content)
    assert SECRET not in "".join(lines)
    assert "the-key" not in "".join(lines)


async def test_a_text_line_has_nine_words_whatever_a_client_sends(lines: list[str]) -> None:
    async with serving(LocalFront(config("text", forwarded_allow_ips=("*",)))) as client:
        headers = {"X-Forwarded-For": "a b, 10.0.0.1"}
        await client.get("/a b%0D%0Ac%22", headers=headers)
        await client.get("/" + "x" * 5000)
    assert [len(line.split()) for line in lines] == [9, 9]
    assert all(len(line) < 2000 for line in lines)


async def test_a_failure_is_a_500_in_the_log_too(lines: list[str]) -> None:
    front = LocalFront(config("json"))
    front.services.model = None  # type: ignore[assignment]
    async with serving(front) as client:
        answer = await client.get("/v1/models", headers={"x-api-key": "the-key"})
    assert answer.status_code == json.loads(lines[0])["status"] == 500


async def test_it_is_off_by_default(lines: list[str]) -> None:
    async with serving(LocalFront()) as client:
        await client.get("/health")
    assert lines == []


@pytest.mark.parametrize("asked", [True, False])
async def test_prompts_are_logged_only_where_that_is_asked(
    asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = server_config(enable_log_prompts=asked, enable_log_requests=True)
    with caplog.at_level(logging.DEBUG):
        async with serving(LocalFront(config)) as client:
            body = {"prompt": f"{SECRET}\nERROR", "max_tokens": 1}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert "prompt tokens, SamplingParams" in caplog.text
    assert (f"{SECRET}\\nERROR" in caplog.text) is asked
    assert (SECRET in caplog.text) is asked
