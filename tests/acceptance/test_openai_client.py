"""The official ``openai`` client against a real server, sync and async, streamed and whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest

from llmkit.testing.http import ServerProcess, validate_stream

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=FRANCE, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == PARIS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(PARIS) + 1
    assert len(answer.choices[0].logprobs.content) == len(PARIS) + 1
    assert answer.model == "tiny"


def test_chat_streamed(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=FRANCE, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == PARIS
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == len(PARIS) + 1


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=FRANCE) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == PARIS


def test_completions(client: openai.OpenAI) -> None:
    prompts = ["abc", "de"]
    whole = client.completions.create(model="tiny", prompt=prompts, n=2)
    assert [choice.text for choice in whole.choices] == ["abc", "abc", "de", "de"]
    texts = [""] * 4
    for chunk in client.completions.create(model="tiny", prompt=prompts, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["abc", "abc", "de", "de"]


async def test_async_chat(async_client: openai.AsyncOpenAI) -> None:
    whole = await async_client.chat.completions.create(model="tiny", messages=FRANCE)
    assert whole.choices[0].message.content == PARIS
    stream = await async_client.chat.completions.create(model="tiny", messages=FRANCE, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == PARIS


async def test_async_completions(async_client: openai.AsyncOpenAI) -> None:
    stream = await async_client.completions.create(model="tiny", prompt="xyz", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "xyz"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "llmkit"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_have_their_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=FRANCE)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=FRANCE, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="a" * 5000)
    assert long.value.code == "context_length_exceeded"


def test_the_raw_stream_is_valid(server: ServerProcess) -> None:
    body = {"messages": FRANCE, "stream": True, "n": 2, "logprobs": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=30
    ) as answer:
        streamed = validate_stream(answer.iter_lines())
    assert {choice.text for choice in streamed.choices.values()} == {PARIS}


@pytest.mark.model
def test_the_small_model_knows_paris(model_server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="none") as client:
        settings = {"model": "smollm2-135m", "messages": FRANCE, "temperature": 0, "max_tokens": 32}
        whole = client.chat.completions.create(**settings).choices[0].message.content
        assert "Paris" in whole
        stream = client.chat.completions.create(**settings, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
