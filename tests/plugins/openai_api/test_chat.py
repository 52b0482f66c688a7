"""Chat completions over a real HTTP server, real generator and templates, and a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from llmkit.config import Config
from llmkit.contracts import FinishReason
from llmkit.frontend.prepare import PrepareHook
from llmkit.messages import NOTHING_ALLOWED
from llmkit.testing.http import StreamedAnswer, validate_stream
from tests.core.server.local_front import MAX_MODEL_LEN, LocalFront, Script, serving

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def front() -> LocalFront:
    return LocalFront()


@pytest.fixture
async def client(front: LocalFront) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(front) as client:
        yield client


async def whole(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"messages": HI, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(client: httpx.AsyncClient, **body: Any) -> StreamedAnswer:
    async with client.stream("POST", URL, json={"messages": HI, "stream": True, **body}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return validate_stream([line async for line in answer.aiter_lines()])


async def refused(client: httpx.AsyncClient, status: int = 400, **body: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"messages": HI, **body})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_whole_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await whole(client)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["system_fingerprint"].startswith("fp_")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"content": "Hello, world", "role": "assistant", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    prompt = len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n") - 2 * 12 - 10 + 3
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 13,
        "total_tokens": prompt + 13,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_a_stream_is_the_same_answer(client: httpx.AsyncClient) -> None:
    answer = await streamed(client)
    assert answer.text == "Hello, world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is None
    assert answer.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, 5, 40])
async def test_streamed_and_whole_are_equal(client: httpx.AsyncClient, n: int, max_tokens: int) -> None:
    body = {"n": n, "max_tokens": max_tokens, "logprobs": True, "top_logprobs": 2}
    one = await whole(client, **body)
    other = await streamed(client, **body, stream_options={"include_usage": True})
    assert other.usage == one["usage"]
    assert sorted(other.choices) == list(range(n))
    for choice in one["choices"]:
        twin = other.choices[choice["index"]]
        assert twin.text == choice["message"]["content"]
        assert twin.finish_reason == choice["finish_reason"]
        assert twin.logprobs == choice["logprobs"]["content"]
    assert sum(len(choice.logprobs) for choice in other.choices.values()) == other.usage["completion_tokens"]


async def test_usage_is_null_before_the_last_chunk(client: httpx.AsyncClient) -> None:
    answer = await streamed(client, stream_options={"include_usage": True})
    assert all(chunk.get("usage") is None for chunk in answer.chunks[:-1])
    assert answer.chunks[-1]["choices"] == []


async def test_logprobs_name_the_bytes(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("é", floor=-1.5)
    answer = await whole(client, logprobs=True, top_logprobs=1, max_tokens=2)
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert first == {
        "token": "\ufffd",
        "logprob": -1.5,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "\ufffd", "logprob": -1.5, "bytes": [0xC3]}],
    }


async def test_sampling_fields_reach_the_engine() -> None:
    config = Config()
    config = replace(config, scheduler=replace(config.scheduler, scheduling_policy="deadline"))
    seen = []
    hooks = [PrepareHook(name, lambda draft: seen.append(draft.params)) for name in "ab"]
    front = LocalFront(config, hooks=hooks)
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    async with serving(front) as client:
        await whole(
            client,
            **fields,
            stop="xyz",
            stop_token_ids=[5],
            logit_bias={"5": 1.5},
            max_completion_tokens=9,
            max_tokens=4,
            priority=3,
            cache_salt="salt",
            vllm_xargs={"a": 1},
            plugin_args={"b": {"c": 2}},
        )
    (request,) = front.engine.requests
    assert request.max_tokens == 9
    assert request.seed == 3
    assert request.priority == 3
    assert request.cache_salt == "salt"
    params, asked = request.params, seen[0]
    assert {name: getattr(params, name) for name in fields if name != "seed"} == {
        name: value for name, value in fields.items() if name != "seed"
    }
    assert params.stop_token_ids == (5,)
    assert params.logit_bias == {5: 1.5}
    # What the front does by itself does not travel.
    assert (params.stop, params.plugin_args) == ((), {})
    assert asked.stop == ("xyz",)
    assert asked.plugin_args == {"a": 1, "b": {"c": 2}}


async def test_the_models_own_defaults_fill_what_a_request_leaves_out() -> None:
    front = LocalFront(defaults={"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    async with serving(front) as client:
        await whole(client, top_k=5, temperature=None)
    params = front.engine.requests[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 5, 0.95)


async def test_a_continued_message_is_left_open_and_echoed(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    messages = [*HI, {"role": "assistant", "content": "Once"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    answer = await whole(client, **body, echo=True)
    assert answer["choices"][0]["message"]["content"] == "OnceHello, world"
    assert bytes(front.engine.requests[0].prompt_ids[-4:]) == b"Once"
    assert (await streamed(client, **body, echo=True)).text == "OnceHello, world"
    assert (await streamed(client, **body)).text == "Hello, world"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 1.5}, "n"),
        ({"stream": "true"}, "stream"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {" 5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": -3}, "max_completion_tokens"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": 3}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"tools": [{"type": "function", "function": {"name": "w"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "w"}]}, "functions"),
        ({"chat_template": "x"}, "chat_template"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"bad_words": [""]}, "bad_words"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 100}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "foo", "content": "x"}]}, "messages[1].role"),
        ({"vllm_xargs": {"nobody": 1}}, "vllm_xargs"),
        ({"plugin_args": {"nobody": 1}}, "plugin_args"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs.tokenize"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": "high"}, "priority"),
        ({"seed": 1 << 70}, "seed"),
    ],
)
async def test_a_wrong_field_is_named(
    front: LocalFront, client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    error = await refused(client, **body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert front.engine.requests == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"seed": 2**63},
            "seed: must be from -9223372036854775808 to 9223372036854775807, not 9223372036854775808",
        ),
        (
            {"seed": -(2**63) - 1},
            "seed: must be from -9223372036854775808 to 9223372036854775807, not -92233",
        ),
        ({"messages": []}, "messages: has 0 items; it must have at least 1"),
        ({"messages": None}, "messages: must be a list, not null"),
        ({"stop": ["a"] * 5000}, "it may have at most 4096"),
        ({"temperature": True}, "temperature: must be a number, not true"),
        ({"stream_options": 3}, "stream_options: must be an object, not 3"),
        ({"early_stopping": "x"}, "early_stopping: must be true or false; or must be 'never', not 'x'"),
        ({"vllm_xargs": {"nobody": 1}}, "vllm_xargs has 'nobody'"),
    ],
)
async def test_words_for_a_wrong_field(client: httpx.AsyncClient, body: dict[str, Any], said: str) -> None:
    assert said in (await refused(client, **body))["message"]


@pytest.mark.parametrize(
    ("content", "header", "said"),
    [
        (b"null", "application/json", "the body is null; it must be an object"),
        (b"", "application/json; charset=utf-8", "the body is empty; it must be an object"),
        (b"[]", "application/json", "the body is []; it must be an object"),
        (b"5", "application/json", "the body must be an object, not 5"),
        (b"{}", "text/plain", "the header Content-Type: application/json"),
        (b"", "text/plain", "the header Content-Type: application/json"),
    ],
)
async def test_what_is_no_object_is_said(
    client: httpx.AsyncClient, content: bytes, header: str, said: str
) -> None:
    answer = await client.post(URL, content=content, headers={"Content-Type": header})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_harmless_fields_and_whole_floats_are_taken(client: httpx.AsyncClient) -> None:
    answer = await whole(
        client,
        model="tiny",
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        use_beam_search=False,
        max_tokens=4.0,
        functions=None,
        audio=None,
        reasoning_effort="low",
    )
    assert answer["usage"]["completion_tokens"] == 4


async def test_an_unknown_field_is_ignored_and_named_once_in_the_log(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await whole(client, fancy_new_thing=1)
    named = [record for record in caplog.records if "fancy_new_thing" in record.getMessage()]
    assert len(named) == 1
    assert named[0].levelname == "WARNING"


async def test_half_a_surrogate_pair_is_refused(client: httpx.AsyncClient) -> None:
    bodies = [
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "stop": "\\ud800"}',
        b'{"messages": [{"role": "user", "content": "a", "x\\ud800": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": "\\ud800"}}',
        b'{"messages": [{"role": "user", "content": "a"}], "model": "\\ud800"}',
        b'{"messages": [{"role": "\\ud800", "content": "a"}], "x\\ud800": 1}',
    ]
    for body in bodies:
        answer = await client.post(URL, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404), (body, answer.text)
        answer.json()


async def test_an_engine_error_before_the_first_token_is_a_500(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says(finish=FinishReason.ERROR, error="the model exploded")
    for stream in (False, True):
        error = await refused(client, 500, stream=stream)
        assert error["message"] == "the model exploded"
        assert error["type"] == "server_error"


async def test_an_engine_error_in_a_stream_is_its_last_event(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says("a", "b", finish=FinishReason.ERROR, error="the model exploded")
    answer = await streamed(client, n=2)
    assert answer.error is not None
    assert answer.error["message"] == "the model exploded"
    assert answer.error["code"] == "engine_error"
    assert all(choice.finish_reason is None for choice in answer.choices.values())
    assert front.engine.running == set()


async def test_a_request_that_leaves_no_token_is_a_400(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says(finish=FinishReason.ERROR, error=NOTHING_ALLOWED)
    for stream in (False, True):
        error = await refused(client, 400, stream=stream)
        assert (error["type"], error["code"]) == ("invalid_request_error", "unsatisfiable")
        assert "allowed_token_ids" in error["message"]
    assert error["param"] is None
    error = await refused(client, 400, allowed_token_ids=[5], min_tokens=3, logit_bias={})
    assert error["param"] == "allowed_token_ids, min_tokens"
    front.says("a", "b", finish=FinishReason.ERROR, error=NOTHING_ALLOWED)
    answer = await streamed(client, n=2)
    assert answer.error is not None
    assert (answer.error["type"], answer.error["code"]) == ("invalid_request_error", "unsatisfiable")
    assert front.engine.running == set()


async def test_an_aborted_request_never_says_abort(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("a", finish=FinishReason.ABORT)
    answer = await streamed(client)
    assert answer.error is not None
    assert answer.error["code"] == "draining"
    error = await refused(client, 503)
    assert error["code"] == "draining"


async def test_the_engines_death_ends_an_open_stream_with_an_error(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says("a", "b", hang_after=2)
    task = asyncio.create_task(streamed(client))
    other = asyncio.create_task(refused(client, 503))
    await until(lambda: front.engine.generated == 4)
    front.die()
    answer = await asyncio.wait_for(task, 2)
    assert answer.error is not None
    assert answer.text == "ab"
    assert "gone" in (await asyncio.wait_for(other, 2))["message"]
    assert (await client.post(URL, json={"messages": HI})).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("said", [0, 2])
async def test_a_client_that_hangs_up_ends_its_request(
    front: LocalFront, client: httpx.AsyncClient, stream: bool, n: int, said: int
) -> None:
    front.says("a", "b", hang_after=said)
    body = {"messages": HI, "stream": stream, "n": n}
    task = asyncio.create_task(client.post(URL, json=body))
    await until(lambda: len(front.engine.running) == n and front.engine.generated == said * n)
    task.cancel()
    await until(lambda: not front.engine.running)
    assert len(front.engine.aborted) == n
    front.says("ok")
    assert (await whole(client))["choices"][0]["message"]["content"] == "ok"
    assert front.generator.in_flight == 0


async def test_two_requests_with_one_id_do_not_meet(front: LocalFront, client: httpx.AsyncClient) -> None:
    release = asyncio.Event()
    front.engine.script = lambda request: Script((bytes(request.prompt_ids[-26:-24]),), release=release)
    headers = {"X-Request-Id": "same"}
    tasks = [
        asyncio.create_task(
            client.post(URL, json={"messages": [{"role": "user", "content": text}]}, headers=headers)
        )
        for text in ("AA", "BB")
    ]
    await until(lambda: len(front.engine.running) == 2)
    release.set()
    answers = [await task for task in tasks]
    assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    prompts = ["".join(map(chr, filter(lambda i: i < 256, r.prompt_ids))) for r in front.engine.requests]
    assert ["AA" in prompt for prompt in prompts] == ["BB" not in prompt for prompt in prompts]


async def test_a_full_queue_is_429(front: LocalFront) -> None:
    async with serving(front) as client:
        front.generator.room.capacity = 1
        front.says("a", hang_after=0)
        task = asyncio.create_task(client.post(URL, json={"messages": HI}))
        await until(lambda: bool(front.engine.running))
        answer = await client.post(URL, json={"messages": HI})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
        task.cancel()


async def test_stop_strings_and_their_reason(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("xx", "yS", "Tz", "more")
    answer = await whole(client, stop=["ST"])
    assert answer["choices"][0]["message"]["content"] == "xxy"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == "ST"
    twin = await streamed(client, stop=["ST"])
    assert (twin.text, twin.choices[0].stop_reason) == ("xxy", "ST")
    assert front.engine.running == set()


async def test_json_keeps_every_character(front: LocalFront, client: httpx.AsyncClient) -> None:
    text = 'quote " backslash \\ newline \n null \x00 emoji 🙂 line \u2028'
    front.says(*(bytes([b]) for b in text.encode()))
    assert (await whole(client))["choices"][0]["message"]["content"] == text
    assert (await streamed(client)).text == text
    assert json.loads((await client.post(URL, json={"messages": HI})).content)


async def until(holds: Any, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
