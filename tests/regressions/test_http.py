"""Bodies, headers and routes, each named after what must hold; the sources are public reports."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llmkit.testing.bytes_tokenizer import BOS_ID
from tests.core.server.local_front import MAX_MODEL_LEN, LocalFront, serving

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {}}}}
TAKES_STRINGS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.fixture
async def front() -> LocalFront:
    return LocalFront()


@pytest.fixture
async def client(front: LocalFront) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(front) as client:
        yield client


async def post(client: httpx.AsyncClient, status: int, path: str = CHAT, **body: Any) -> Any:
    """The answer's body; afterwards the server must be well."""
    sent = body if path != CHAT else {"messages": HI, **body}
    answer = await client.post(path, json=sent)
    assert answer.status_code == status, answer.text
    decoded = json.loads(answer.content.decode())
    if status >= 400:
        assert set(decoded["error"]) == {"message", "type", "param", "code"}
    assert (await client.get("/health")).status_code == 200
    return decoded


def prompt_of(front: LocalFront) -> str:
    return front.services.tokenizer.decode(front.engine.requests[-1].prompt_ids)


# Source: vllm-project/vllm#54026 (B143)
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": 7}]}, "messages[0].tool_calls"),
        ({"tools": 3}, "tools"),
        ({"tools": [1], "tool_choice": {"type": "function", "function": {"name": "a"}}}, "tools[0]"),
        ({"messages": []}, "messages"),
    ],
)
async def test_wrong_containers_are_400(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    assert (await post(client, 400, **body))["error"]["param"] == param


# Source: ggml-org/llama.cpp#9210 (B146)
async def test_bytes_that_are_no_utf8_are_400(client: httpx.AsyncClient) -> None:
    body = b'{"messages": [{"role": "user", "content": "\xb4\xf3"}]}'
    answer = await client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "UTF-8" in json.loads(answer.content.decode())["error"]["message"]


# Source: sgl-project/sglang#4293 (B149)
async def test_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    error = (await post(client, 404, model="not-here"))["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert (await client.get("/v1/models/not-here")).status_code == 404


# Source: vllm-project/vllm#21089 (B151)
@pytest.mark.parametrize("content", ["", None, []])
async def test_an_assistant_may_say_nothing(client: httpx.AsyncClient, content: Any) -> None:
    messages = [*HI, {"role": "assistant", "content": content}, {"role": "user", "content": "two"}]
    async with serving(LocalFront(template=TAKES_STRINGS)) as other:
        await post(other, 200, messages=messages)
    if content is not None:
        await post(client, 200, messages=messages)


# Source: ggml-org/llama.cpp#20215 (B154)
async def test_a_developer_is_the_system_to_templates_that_know_none() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *HI]
    for template, expected in (
        (TAKES_STRINGS, "[system] Be brief."),
        (TAKES_STRINGS + "{# developer #}", "[developer] Be brief."),
    ):
        front = LocalFront(template=template)
        async with serving(front) as client:
            await post(client, 200, messages=messages)
        assert expected in prompt_of(front)


# Source: sgl-project/sglang#22595 (B155)
async def test_parts_of_a_tool_message_are_rendered_as_text() -> None:
    front = LocalFront(template=TAKES_STRINGS)
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}}
    prompts = []
    async with serving(front) as client:
        for content in ([{"type": "text", "text": "87 m"}], "87 m"):
            messages = [
                *HI,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": content},
            ]
            await post(client, 200, messages=messages)
            prompts.append(prompt_of(front))
    assert prompts[0] == prompts[1]
    assert "87 m" in prompts[0]
    assert "'type'" not in prompts[0]


# Source: vllm-project/vllm#9426 (B156)
@pytest.mark.parametrize("body", [{"tool_choice": "none"}, {"tool_choice": "none", "tools": [WEATHER]}])
async def test_tool_choice_none_is_always_taken(
    front: LocalFront, client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    said = '<tool_call>{"name": "w", "arguments": {}}</tool_call>'
    front.says(said)
    (choice,) = (await post(client, 200, **body))["choices"]
    assert choice["message"]["content"] == said
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


# Source: nomic-ai/gpt4all#3635 (B160)
@pytest.mark.parametrize(
    "body",
    [
        {"n": 1_000_000},
        {"max_tokens": 9223372036854775807},
        {"max_tokens": 1e30},
        {"logprobs": True, "top_logprobs": 100_000},
        {"n": 0},
        {"n": -1},
        {"n": "2"},
        {"n": True},
    ],
)
async def test_counts_have_bounds_and_types(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    error = (await post(client, 400, **body))["error"]
    assert error["param"] == next(name for name in reversed(body))


# Source: vllm-project/vllm#39279 (B162)
async def test_without_a_chat_template_only_chat_is_refused() -> None:
    async with serving(LocalFront(template=None)) as client:
        assert "chat template" in (await post(client, 400))["error"]["message"]
        await post(client, 400, "/tokenize", messages=HI)
        await post(client, 200, "/v1/completions", prompt="a")


# Source: vllm-project/vllm#17119 (B163)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_template_refuses_in_its_own_words(stream: bool) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    async with serving(LocalFront(template=ALTERNATES)) as client:
        error = (await post(client, 400, messages=messages, stream=stream))["error"]
    assert "roles must alternate" in error["message"]
    assert error["param"] == "messages"


# Source: vllm-project/vllm#55288 (B164)
async def test_the_begin_of_sequence_comes_once() -> None:
    front = LocalFront(template=TAKES_STRINGS, add_bos=True)
    async with serving(front) as client:
        await post(client, 200)
        counted = await post(client, 200, "/tokenize", messages=HI)
    assert front.engine.requests[0].prompt_ids == counted["tokens"]
    assert counted["tokens"].count(BOS_ID) == 1


# Source: vllm-project/vllm#19285 (B167)
async def test_a_continued_message_is_echoed_twice_alike(client: httpx.AsyncClient) -> None:
    body = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Once there"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "echo": True,
        "max_tokens": 4,
    }
    texts = [(await post(client, 200, **body))["choices"][0]["message"]["content"] for _ in range(2)]
    assert texts == ["Once thereHell"] * 2


# Source: vllm-project/vllm#25794 (B168)
@pytest.mark.parametrize(
    "body",
    [
        {"chat_template_kwargs": {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"tokenize": False}},
        {"chat_template": "x"},
    ],
)
async def test_a_request_cannot_replace_the_template(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert "chat_template" in (await post(client, 400, **body))["error"]["param"]
    await post(client, 200, chat_template_kwargs={"enable_thinking": False})


# ---- prompts and sampling over HTTP ----


# Source: vllm-project/vllm#10234 (B082)
async def test_minus_infinity_is_a_number_in_json(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("ab", floor=float("-inf"))

    def strict(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    for path, body in (
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "a", "logprobs": 2}),
    ):
        answer = await client.post(path, json=body)
        assert answer.status_code == 200
        logprobs = json.loads(answer.content, parse_constant=strict)["choices"][0]["logprobs"]
        values = logprobs.get("token_logprobs") or [entry["logprob"] for entry in logprobs["content"]]
        assert values
        assert all(value == -9999.0 for value in values)


# Source: vllm-project/vllm#14234 (B084)
async def test_top_k_takes_any_count_and_two_words_for_all(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    for top_k in (1_000_000, 0, -1):
        await post(client, 200, top_k=top_k)
    assert (await post(client, 400, top_k=-2))["error"]["param"] == "top_k"


# Source: vllm-project/vllm#16529 (B087)
@pytest.mark.parametrize("bias", [{"999999999": 5}, {"-1": 5}, {"abc": 5}, {"5": 1000}, {"5": "x"}])
async def test_logit_bias_names_known_tokens(client: httpx.AsyncClient, bias: dict[str, Any]) -> None:
    assert (await post(client, 400, logit_bias=bias))["error"]["param"].startswith("logit_bias")
    await post(client, 200)


# Source: vllm-project/vllm#7746 (B113)
@pytest.mark.parametrize("prompt", ["", [""], [], [[]]])
async def test_an_empty_prompt_is_400(client: httpx.AsyncClient, prompt: Any) -> None:
    await post(client, 400, "/v1/completions", prompt=prompt)


# Source: vllm-project/vllm#7746 (B113)
async def test_an_empty_text_is_a_prompt_where_the_tokenizer_begins_one() -> None:
    async with serving(LocalFront(add_bos=True)) as client:
        await post(client, 200, "/v1/completions", prompt="")


# Source: vllm-project/vllm#35231 (B114)
@pytest.mark.parametrize("prompt", [[-1], [[-1]], [1, 2.5]])
async def test_prompt_ids_are_ids_of_the_model(client: httpx.AsyncClient, prompt: Any) -> None:
    await post(client, 400, "/v1/completions", prompt=prompt)


# Source: sgl-project/sglang#3910 (B116)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_longer_than_the_context_is_400(client: httpx.AsyncClient, stream: bool) -> None:
    answer = await post(client, 400, "/v1/completions", prompt="a" * (MAX_MODEL_LEN + 1), stream=stream)
    assert answer["error"]["code"] == "context_length_exceeded"
    chat = [{"role": "user", "content": "a" * (MAX_MODEL_LEN + 1)}]
    error = (await post(client, 400, messages=chat, stream=stream))["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


# Source: vllm-project/vllm#6521 (B118)
@pytest.mark.parametrize("prompt", ["The sum is: 7", [*b"The sum is: 7"]])
async def test_a_prompt_may_be_echoed_and_nothing_more(client: httpx.AsyncClient, prompt: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 0, "echo": True}
    answer = await post(client, 200, "/v1/completions", **body)
    assert answer["choices"][0]["text"] == "The sum is: 7"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    answer = await post(client, 200, "/v1/completions", **body, logprobs=1)
    assert answer["choices"][0]["text"] == "The sum is: 7"
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, *(-0.25 - at for at in range(12))]
    assert logprobs["top_logprobs"][:2] == [None, {"i": -1.25, "h": -0.25}]
    assert "".join(logprobs["tokens"]) == "The sum is: 7"
    assert logprobs["text_offset"] == list(range(13))


# Source: vllm-project/vllm#10234 (B082)
async def test_logprobs_of_minus_infinity_are_finite_in_json(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    front.says("x", floor=-math.inf)
    body = {"prompt": "a b c", "echo": True, "logprobs": 1, "temperature": 1, "top_k": 1, "max_tokens": 1}
    logprobs = (await post(client, 200, "/v1/completions", **body))["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, *[-9999.0] * 5]
    assert all(set(top.values()) == {-9999.0} for top in logprobs["top_logprobs"][1:])


# Source: vllm-project/vllm#6521 (B118)
@pytest.mark.parametrize("max_tokens", [0, -1])
async def test_chat_needs_a_token_to_say(client: httpx.AsyncClient, max_tokens: int) -> None:
    assert (await post(client, 400, max_tokens=max_tokens))["error"]["param"] == "max_tokens"
