"""The Messages API over a real HTTP server, real generator and templates, and a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from llmkit.config import LimitsConfig, SchedulerConfig
from llmkit.contracts import FinishReason
from llmkit.testing.messages import StreamedMessage, validate_messages_stream
from tests.core.frontend.toy_formats import Brackets, Thoughts
from tests.core.server.local_front import LocalFront, State, server_config, serving

URL = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
USE = {"type": "tool_use", "id": "a", "name": "b", "input": {}}
IMAGE = {"type": "image", "source": {}}
FORM = {"type": "json_schema", "schema": {}}
MESSY = '((why not))so [add {"a": 1}][add {}] then'


@pytest.fixture
async def front() -> LocalFront:
    return LocalFront(tool=Brackets(), reasoning=Thoughts())


@pytest.fixture
async def client(front: LocalFront) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(front) as client:
        yield client


def asked(**body: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 100, "messages": HI, **body}


async def whole(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(URL, json=asked(**body))
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.json()


async def streamed(client: httpx.AsyncClient, **body: Any) -> StreamedMessage:
    async with client.stream("POST", URL, json=asked(stream=True, **body)) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return validate_messages_stream([line async for line in answer.aiter_lines()])


def failure(answer: httpx.Response, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert body["error"]["type"] == kind
    assert int(answer.headers["content-length"]) == len(answer.content)
    return body["error"]["message"]


def prompt_of(front: LocalFront) -> str:
    return front.services.tokenizer.decode(front.engine.requests[-1].prompt_ids)


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """What two runs of one request have in common."""
    content = [{**block, "id": ""} if "id" in block else block for block in message["content"]]
    return {**message, "id": "", "content": content}


async def test_a_whole_message_has_anthropics_shape(client: httpx.AsyncClient) -> None:
    message = await whole(client)
    assert message.pop("id").startswith("msg_")
    tokens = message["usage"].pop("input_tokens")
    assert tokens > 0
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello, world", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "output_tokens": 13,
            "output_tokens_details": {"thinking_tokens": 0},
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "service_tier": "standard",
        },
    }
    counted = await client.post(f"{URL}/count_tokens", json={"model": "tiny", "messages": HI})
    assert counted.json() == {"input_tokens": tokens}


@pytest.mark.parametrize("text", ["Hello", MESSY, "", "((cut", '[add {"a"', "((a))[add {}]é[", "aSTOPb"])
@pytest.mark.parametrize("size", [1, 3, 99])
async def test_streamed_and_whole_are_equal(
    front: LocalFront, client: httpx.AsyncClient, text: str, size: int
) -> None:
    data = text.encode()
    front.says(*[data[i : i + size] for i in range(0, len(data), size)])
    body = {"tools": [ADD], "stop_sequences": ["STOP"]}
    one, other = await whole(client, **body), await streamed(client, **body)
    assert other.message is not None
    assert bare(other.message) == bare(one)
    cut = {"max_tokens": 5, **body}
    one, other = await whole(client, **cut), await streamed(client, **cut)
    assert other.message is not None
    assert bare(other.message) == bare(one)


async def test_an_answer_of_several_parts_is_several_blocks(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says(MESSY)
    message = await whole(client, tools=[ADD], thinking={"type": "adaptive"})
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert message["content"][0]["thinking"] == "why not"
    assert message["content"][0]["signature"]
    assert message["content"][2]["id"].startswith("toolu_")
    assert [block["input"] for block in message["content"][2:4]] == [{"a": 1}, {}]
    assert message["stop_reason"] == "tool_use"
    omitted = await whole(client, tools=[ADD], thinking={"type": "adaptive", "display": "omitted"})
    assert omitted["content"][0]["thinking"] == ""
    stream = await streamed(client, tools=[ADD], thinking={"type": "adaptive", "display": "omitted"})
    assert stream.message is not None
    assert bare(stream.message) == bare(omitted)


async def test_why_it_stopped(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("abSTcd")
    message = await whole(client, stop_sequences=["ST"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "ST")
    assert (await whole(client, max_tokens=2))["stop_reason"] == "max_tokens"
    front.says("x" * 600)
    message = await whole(client, max_tokens=100_000)
    assert message["stop_reason"] == "model_context_window_exceeded"


async def test_all_blocks_reach_the_template(front: LocalFront, client: httpx.AsyncClient) -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "One?", "cache_control": {}}],
        },
        {"role": "user", "content": "Still one?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "three"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "broke"}],
                    "is_error": True,
                },
                {"type": "text", "text": "Go on"},
            ],
        },
    ]
    await whole(client, messages=messages, system=[{"type": "text", "text": "Rules."}])
    prompt = prompt_of(front)
    words = ["Rules.", "One?", "Still one?", "Let me", "three", "Error: broke", "Go on"]
    places = [prompt.index(word) for word in words]
    assert places == sorted(places)
    assert prompt.count("<|im_start|>user") == 2


async def test_a_last_turn_of_the_assistant_is_continued(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    await whole(client, messages=[*HI, {"role": "assistant", "content": "Once"}])
    assert prompt_of(front).endswith("Once")


async def test_fields_reach_the_engine(front: LocalFront, client: httpx.AsyncClient) -> None:
    await whole(client, temperature=0.5, top_p=0.9, top_k=7, seed=3, max_tokens=9, system="Rules.")
    request = front.engine.requests[-1]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 7)
    assert (request.seed, request.max_tokens) == (3, 9)
    assert "Rules." in prompt_of(front)


async def test_what_templates_read_reaches_them() -> None:
    template = "{{ reasoning_effort }}/{{ enable_thinking }}/{{ messages[0].content }}"
    front = LocalFront(template=template)
    async with serving(front) as client:
        thinking = {"type": "disabled"}
        await whole(client, output_config={"effort": "high"}, thinking=thinking)
    assert prompt_of(front) == "high/False/hi"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}
                ]
            },
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t",
                                "content": [{"type": "image", "source": {}}],
                            }
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"temperature": 1.5}, "temperature"),
        ({"top_k": "many"}, "top_k"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_format",
        ),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "context"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], named: str
) -> None:
    given = {key: value for key, value in asked(**body).items() if value is not None}
    message = failure(await client.post(URL, json=given), 400, "invalid_request_error")
    assert named in message


async def test_failures_of_every_layer_are_anthropics() -> None:
    config = replace(
        server_config(api_key=("key",)),
        scheduler=SchedulerConfig(max_num_seqs=1, max_queue=0),
        limits=LimitsConfig(max_request_bytes=2000),
    )
    front = LocalFront(config)
    headers = {"x-api-key": "key"}
    async with serving(front) as client:
        failure(await client.post(URL, json=asked()), 401, "authentication_error")
        failure(await client.post(URL, json=asked(model="other"), headers=headers), 404, "not_found_error")
        failure(await client.post(URL, content=b"x" * 3000, headers=headers), 413, "request_too_large")
        failure(await client.post(URL, content=b"{", headers=headers), 400, "invalid_request_error")
        failure(await client.get(URL, headers=headers), 405, "invalid_request_error")
        front.says("abc", hang_after=1)
        async with client.stream("POST", URL, json=asked(stream=True), headers=headers) as running:
            assert running.status_code == 200
            answer = await client.post(URL, json=asked(), headers=headers)
            failure(answer, 429, "rate_limit_error")
            assert answer.headers["retry-after"]
        while front.engine.running:
            await asyncio.sleep(0.01)
        front.says("a", finish=FinishReason.ERROR, error="broke")
        failure(await client.post(URL, json=asked(), headers=headers), 500, "api_error")
        front.state = State("draining")
        failure(await client.post(URL, json=asked(), headers=headers), 529, "overloaded_error")
        other = await client.post("/v1/chat/completions", json=asked(), headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (503, "draining")


async def test_a_failure_in_a_stream_is_its_last_event(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("ab", "c", finish=FinishReason.ERROR, error="broke")
    stream = await streamed(client)
    assert stream.error == {"type": "api_error", "message": "broke"}


async def test_a_client_that_leaves_frees_the_engine(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("abc", hang_after=1)
    async with client.stream("POST", URL, json=asked(stream=True)) as answer:
        await anext(answer.aiter_lines())
    while front.engine.running:
        await asyncio.sleep(0.01)
    assert front.generator.in_flight == 0
