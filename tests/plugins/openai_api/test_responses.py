"""The Responses API over a real HTTP server, real generator and templates, and a scripted engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llmkit.contracts import FinishReason
from llmkit.testing.responses import StreamedResponse, validate_responses_stream
from tests.core.frontend.toy_formats import Brackets, Thoughts
from tests.core.server.local_front import LocalFront, Script, server_config, serving

URL = "/v1/responses"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
LOGPROBS = ["message.output_text.logprobs"]
MESSY = '((why not))so [add {"a": 1}][add {}] then'


@pytest.fixture
async def front() -> LocalFront:
    return LocalFront(tool=Brackets(), reasoning=Thoughts())


@pytest.fixture
async def client(front: LocalFront) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(front) as client:
        yield client


async def whole(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"input": "hi", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(
    client: httpx.AsyncClient, path: str | None = None, after: int = -1, **body: Any
) -> StreamedResponse:
    asked = {"method": "POST", "url": URL, "json": {"input": "hi", "stream": True, **body}}
    if path is not None:
        asked = {"method": "GET", "url": path}
    async with client.stream(**asked) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return validate_responses_stream([line async for line in answer.aiter_lines()], after=after)


async def refused(
    client: httpx.AsyncClient, status: int = 400, method: str = "POST", path: str = URL, **body: Any
) -> dict[str, Any]:
    sent = {"json": {"input": "hi", **body}} if method == "POST" else {}
    answer = await client.request(method, path, **sent)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def prompt_of(front: LocalFront) -> str:
    ids = front.engine.requests[-1].prompt_ids
    return front.services.tokenizer.decode(ids)


def bare(response: dict[str, Any]) -> dict[str, Any]:
    """What two runs of one request have in common."""
    text = json.dumps({k: v for k, v in response.items() if k not in ("created_at", "completed_at", "id")})
    fresh = json.loads(text)
    for item in fresh["output"]:
        item["id"] = item["id"].partition("_")[0]
        if "call_id" in item:
            item["call_id"] = "call"
    return fresh


async def settled(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """A response in the background, once it has ended."""
    while True:
        response = (await client.get(f"{URL}/{name}")).json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.01)


async def test_a_whole_response_has_openais_shape(client: httpx.AsyncClient) -> None:
    response = await whole(client, metadata={"a": "b"}, instructions="Be brief.", user="u", max_tool_calls=3)
    assert response["id"].startswith("resp_")
    (message,) = response["output"]
    assert message["id"].startswith("msg_")
    assert {key: message[key] for key in ("type", "role", "status", "content")} == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello, world", "annotations": [], "logprobs": []}],
    }
    assert response["object"] == "response"
    assert (response["status"], response["error"], response["incomplete_details"]) == (
        "completed",
        None,
        None,
    )
    assert (response["metadata"], response["user"], response["instructions"]) == (
        {"a": "b"},
        "u",
        "Be brief.",
    )
    assert (response["tool_choice"], response["tools"], response["max_tool_calls"]) == ("auto", [], 3)
    assert response["text"] == {"format": {"type": "text"}}
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] == 13
    assert usage["input_tokens_details"]["cached_tokens"] == 0


async def test_an_answer_of_several_parts_is_several_items(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says(MESSY)
    response = await whole(client, tools=[ADD])
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "message",
    ]
    thought, said, first, second, then = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "why not"}]
    assert (said["content"][0]["text"], then["content"][0]["text"]) == ("so ", " then")
    assert (first["name"], first["arguments"], second["arguments"]) == ("add", '{"a": 1}', "{}")
    assert first["call_id"] != second["call_id"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize(
    "data",
    [
        b"Hello",
        MESSY.encode(),
        b"",
        b"((cut",
        b'[add {"a"',
        "((a))[add {}]é[".encode(),
        "é((b))c".encode(),
        b"ab\xff[add {}]xyz\xfe((b\xfd))cd",
        b"[d ]d(())x",
    ],
)
async def test_streamed_and_whole_are_equal(
    front: LocalFront, client: httpx.AsyncClient, data: bytes
) -> None:
    """However the engine groups tokens: the parts and their logprobs are the same."""
    luck = random.Random(data)
    body = {"tools": [ADD], "include": LOGPROBS, "top_logprobs": 2}
    seen = []
    for size in (1, len(data) + 1, 3):
        cuts = sorted(luck.sample(range(len(data) + 1), min(size, len(data)))) if size == 3 else None
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        if cuts is not None:
            pieces = [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        front.says(*[piece for piece in pieces if piece])
        one, other = await whole(client, **body), await streamed(client, **body)
        assert other.response is not None
        assert bare(other.response) == bare(one)
        seen.append(bare(one))
    assert seen[0] == seen[1] == seen[2]
    for item in seen[0]["output"]:
        if item["type"] == "message":
            (part,) = item["content"]
            of_tokens = b"".join(bytes(token["bytes"]) for token in part["logprobs"])
            assert of_tokens.decode(errors="replace") == part["text"]
            assert all(len(token["top_logprobs"]) == 2 for token in part["logprobs"])


async def test_an_answer_that_is_cut_off_is_incomplete(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says('[add {"a": 1}]')
    body = {"tools": [ADD], "max_output_tokens": 9}
    response = await whole(client, **body)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    (call,) = response["output"]
    assert (call["status"], response["completed_at"]) == ("incomplete", None)
    stream = await streamed(client, **body)
    assert stream.events[-1]["type"] == "response.incomplete"


async def test_a_failure_ends_the_stream_and_stays(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("ab", "c", finish=FinishReason.ERROR, error="the engine broke")
    stream = await streamed(client)
    assert stream.response is not None
    assert stream.response["error"] == {"code": "server_error", "message": "the engine broke"}
    assert (await client.get(f"{URL}/{stream.response['id']}")).json() == stream.response
    error = await refused(client, 500)
    assert error["message"] == "the engine broke"


# ---- conversations ----


async def test_all_items_of_a_conversation_reach_the_template(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "One?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "t"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Two?"},
    ]
    await whole(client, input=items, instructions="Rules.")
    prompt = prompt_of(front)
    for words in ("Rules.", "Be kind.", "One?", "Let me", "3", "No.", "Two?"):
        assert words in prompt
    places = [prompt.index(words) for words in ("Rules.", "Be kind.", "One?", "Let me", "No.", "Two?")]
    assert places == sorted(places)


async def test_a_response_goes_on_where_the_previous_one_ended(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says("((hm))The first.")
    first = await whole(client, input="Question one", instructions="Only now.")
    second = await whole(client, input="Question two", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    prompt = prompt_of(front)
    assert "Question one" in prompt
    assert "The first." in prompt
    assert "Question two" in prompt
    assert "Only now." not in prompt
    items = (await client.get(f"{URL}/{second['id']}/input_items", params={"order": "asc"})).json()
    assert [item["type"] for item in items["data"]] == ["message", "reasoning", "message", "message"]
    page = await client.get(f"{URL}/{second['id']}/input_items", params={"limit": 2, "order": "desc"})
    assert page.json()["has_more"] is True
    assert page.json()["last_id"] == items["data"][2]["id"]
    after = {"after": page.json()["last_id"], "order": "desc"}
    rest = (await client.get(f"{URL}/{second['id']}/input_items", params=after)).json()
    assert [item["id"] for item in rest["data"]] == [item["id"] for item in items["data"][:2]][::-1]
    reference = [{"type": "item_reference", "id": items["data"][0]["id"]}, {"role": "user", "content": "x"}]
    await whole(client, input=reference)
    assert "Question one" in prompt_of(front)


async def test_tokens_of_an_input_are_counted(client: httpx.AsyncClient) -> None:
    body = {"input": "Count me", "instructions": "Rules.", "tools": [ADD]}
    counted = await client.post(f"{URL}/input_tokens", json=body)
    assert counted.json()["object"] == "response.input_tokens"
    response = await whole(client, **body)
    assert counted.json()["input_tokens"] == response["usage"]["input_tokens"]


# ---- kept responses ----


async def test_kept_responses_are_read_and_deleted(client: httpx.AsyncClient) -> None:
    response = await whole(client)
    path = f"{URL}/{response['id']}"
    assert (await client.get(path)).json() == response
    assert (await client.delete(path)).json() == {"id": response["id"], "object": "response", "deleted": True}
    assert (await refused(client, 404, "GET", path))["code"] == "not_found"
    unkept = await whole(client, store=False)
    await refused(client, 404, "GET", f"{URL}/{unkept['id']}")
    error = await refused(client, 404, previous_response_id=unkept["id"])
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


async def test_the_oldest_are_dropped_and_that_is_said() -> None:
    front = LocalFront(server_config(max_stored_responses=2))
    async with serving(front) as client:
        names = [(await whole(client))["id"] for _ in range(3)]
        error = await refused(client, 404, "GET", f"{URL}/{names[0]}")
        assert "dropped" in error["message"]
        assert "--max-stored-responses" in error["message"]
        for name in names[1:]:
            assert (await client.get(f"{URL}/{name}")).status_code == 200


async def test_bytes_are_bounded_too() -> None:
    front = LocalFront(server_config(max_stored_response_bytes=4000))
    async with serving(front) as client:
        names = [(await whole(client))["id"] for _ in range(4)]
        found = [(await client.get(f"{URL}/{name}")).status_code for name in names]
        assert found[0] == 404
        assert found[-1] == 200
        large = await whole(client, metadata={str(i): "x" * 500 for i in range(10)})
        await refused(client, 404, "GET", f"{URL}/{large['id']}")


async def test_nothing_is_kept_where_nothing_may_be() -> None:
    front = LocalFront(server_config(max_stored_responses=0))
    async with serving(front) as client:
        response = await whole(client)
        assert response["store"] is False
        error = await refused(client, 404, "GET", f"{URL}/{response['id']}")
        assert "--max-stored-responses 0" in error["message"]
        assert (await refused(client, background=True))["param"] == "background"


async def test_each_key_sees_its_own() -> None:
    front = LocalFront(server_config(api_key=("one", "two")))
    async with serving(front) as client:
        headers = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]
        made = await client.post(URL, json={"input": "hi"}, headers=headers[0])
        path = f"{URL}/{made.json()['id']}"
        assert (await client.get(path, headers=headers[0])).status_code == 200
        for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
            assert (await client.request(method, where, headers=headers[1])).status_code == 404
        reference = [{"type": "item_reference", "id": made.json()["output"][0]["id"]}]
        for body in ({"input": "x", "previous_response_id": made.json()["id"]}, {"input": reference}):
            assert (await client.post(URL, json=body, headers=headers[1])).status_code == 404


# ---- background ----


async def test_a_response_in_the_background_is_polled(front: LocalFront, client: httpx.AsyncClient) -> None:
    release = asyncio.Event()
    front.says("Hello", release=release)
    queued = await whole(client, background=True)
    assert (queued["status"], queued["output"], queued["usage"]) == ("queued", [], None)
    running = (await client.get(f"{URL}/{queued['id']}")).json()
    assert running["status"] == "in_progress"
    error = await refused(client, previous_response_id=queued["id"])
    assert "has not ended" in error["message"]
    release.set()
    response = await settled(client, queued["id"])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    again = await client.post(f"{URL}/{queued['id']}/cancel")
    assert again.json() == response


async def test_a_response_in_the_background_is_followed_twice(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says("abc", "def", "ghi", pause_s=0.01)
    stream = await streamed(client, background=True)
    assert stream.text == "abcdefghi"
    assert stream.response is not None
    assert stream.events[1]["type"] == "response.queued"
    path = f"{URL}/{stream.response['id']}?stream=true"
    assert (await streamed(client, path)).events == stream.events
    assert (await streamed(client, f"{path}&starting_after=6", after=6)).events == stream.events[7:]
    await refused(client, 400, "GET", f"{URL}/{(await whole(client))['id']}?stream=true")


async def test_a_cancelled_response_frees_the_engine(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("abc", hang_after=1)
    queued = await whole(client, background=True)
    following = asyncio.create_task(streamed(client, f"{URL}/{queued['id']}?stream=true"))
    while not front.engine.generated:
        await asyncio.sleep(0.01)
    cancelled = (await client.post(f"{URL}/{queued['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["content"][0]["text"] == "abc"
    assert cancelled["output"][0]["status"] == "incomplete"
    assert not front.engine.running
    assert front.generator.in_flight == 0
    stream = await following
    assert stream.error is not None
    assert stream.error["code"] == "response_cancelled"
    assert (await client.get(f"{URL}/{queued['id']}")).json() == cancelled


async def test_one_deleted_in_the_background_ends(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("abc", hang_after=1)
    queued = await whole(client, background=True)
    await client.delete(f"{URL}/{queued['id']}")
    assert not front.engine.running
    await refused(client, 404, "GET", f"{URL}/{queued['id']}")


async def test_a_client_that_leaves_ends_its_response(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("abc", hang_after=1)
    async with client.stream("POST", URL, json={"input": "hi", "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "response.created" in line and line.startswith("data:"):
                name = json.loads(line.removeprefix("data: "))["response"]["id"]
                break
        await refused(client, 400, "POST", f"{URL}/{name}/cancel")
        await refused(client, 400, "DELETE", f"{URL}/{name}")
    while front.engine.running:
        await asyncio.sleep(0.01)
    assert (await settled(client, name))["status"] == "cancelled"
    assert front.generator.in_flight == 0


async def test_a_bad_request_in_the_background_is_refused_at_once(client: httpx.AsyncClient) -> None:
    error = await refused(client, background=True, input="x" * 5000)
    assert error["code"] == "context_length_exceeded"
    assert (await refused(client, background=True, store=False))["param"] == "background"


async def test_a_failure_in_the_background_is_kept(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.engine.script = lambda request: Script(["a"], finish=FinishReason.ERROR, error="broke")
    response = await settled(client, (await whole(client, background=True))["id"])
    assert (response["status"], response["error"]["message"]) == ("failed", "broke")


# ---- fields ----


async def test_fields_reach_the_engine(front: LocalFront, client: httpx.AsyncClient) -> None:
    response = await whole(
        client,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        seed=3,
        min_tokens=2,
        max_output_tokens=20,
        include=LOGPROBS,
        top_logprobs=4,
        priority=0,
        cache_salt="salt",
    )
    request = front.engine.requests[-1]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_tokens) == (0.5, 0.9, 7, 2)
    assert (request.seed, request.max_tokens, request.cache_salt, params.logprobs) == (3, 20, "salt", 4)
    assert (response["temperature"], response["top_p"], response["max_output_tokens"]) == (0.5, 0.9, 20)


async def test_what_templates_read_reaches_them() -> None:
    template = (
        "{{ reasoning_effort }}/{{ verbosity }}/{{ mine }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    front = LocalFront(template=template)
    async with serving(front) as client:
        await whole(
            client,
            reasoning={"effort": "high", "summary": "auto"},
            text={"verbosity": "low"},
            chat_template_kwargs={"mine": "x"},
        )
    assert prompt_of(front) == "high/low/xhi"


async def test_a_prompt_that_is_too_long_loses_its_beginning_if_it_may(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    long = "x" * 900 + "the end"
    assert (await refused(client, input=long))["code"] == "context_length_exceeded"
    await whole(client, input=long, truncation="auto")
    assert "the end" in prompt_of(front)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]}, "input[0].arguments"),
        ({"instructions": 3}, "instructions"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"background_options": {"continuation_id": "x"}}, "background_options.continuation_id"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [ADD, ADD]}, "tools[1].name"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [ADD], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        (
            {"tools": [ADD], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}},
            "tool_choice.mode",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["all"]}, "include[0]"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"service_tier": "best"}, "service_tier"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    error = await refused(client, **body)
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"


async def test_unknown_responses_are_404(client: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", f"{URL}/resp_x"),
        ("DELETE", f"{URL}/resp_x"),
        ("POST", f"{URL}/resp_x/cancel"),
        ("GET", f"{URL}/resp_x/input_items"),
    ):
        await refused(client, 404, method, path)
