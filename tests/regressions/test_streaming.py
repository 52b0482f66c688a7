"""The grammar of streams, each named after what must hold; the sources are public reports."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from llmkit.contracts import FinishReason
from llmkit.testing.http import FINISH_REASONS, StreamedAnswer, validate_stream
from tests.core.server.local_front import LocalFront, serving

HI = {"messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


async def stream(client: httpx.AsyncClient, body: dict[str, Any], path: str = CHAT) -> StreamedAnswer:
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        return validate_stream([line async for line in answer.aiter_lines()])


# Source: ggml-org/llama.cpp#13634 (B049)
async def test_the_first_chunk_has_the_role() -> None:
    async with serving(LocalFront()) as client:
        first = (await stream(client, HI)).chunks[0]["choices"][0]
    assert first["delta"]["role"] == "assistant"
    assert first["finish_reason"] is None


# Source: ollama/ollama#7626 (B050)
async def test_the_role_comes_once_a_choice() -> None:
    front = LocalFront()
    front.says("a", "b", "c")
    async with serving(front) as client:
        chunks = (await stream(client, {**HI, "n": 2})).chunks
    for index in (0, 1):
        deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"][0]["index"] == index]
        assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)


# Source: vllm-project/vllm#7262 (B052)
async def test_usage_is_one_last_chunk_without_choices() -> None:
    async with serving(LocalFront()) as client:
        chunks = (await stream(client, {**HI, "stream_options": {"include_usage": True}})).chunks
    usage = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == []
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert all(chunk.get("usage") is None for chunk in chunks[:-1])


# Source: vllm-project/vllm#9475 (B054)
async def test_usage_counts_every_choice_and_the_prompt_once() -> None:
    body = {"prompt": "a", "n": 3, "max_tokens": 4, "ignore_eos": True}
    async with serving(LocalFront()) as client:
        streamed = await stream(
            client, {**body, "stream_options": {"include_usage": True}}, "/v1/completions"
        )
        whole = (await client.post("/v1/completions", json=body)).json()
    for usage in (streamed.usage, whole["usage"]):
        assert (usage["completion_tokens"], usage["prompt_tokens"]) == (12, 1)


# Source: vllm-project/vllm#35705 (B056)
@pytest.mark.parametrize("max_tokens", [1, 5, 100])
async def test_the_finish_chunk_has_an_empty_delta_and_is_the_last(max_tokens: int) -> None:
    async with serving(LocalFront()) as client:
        chunks = (await stream(client, {**HI, "max_tokens": max_tokens})).chunks
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] is not None for choice in choices] == [False] * (len(chunks) - 1) + [True]
    assert choices[-1]["delta"] == {}


# Source: vllm-project/vllm#40986 (B059)
@pytest.mark.parametrize("said", [(), ("a",)])
async def test_an_engine_error_is_never_a_bare_end(said: tuple[str, ...]) -> None:
    front = LocalFront()
    front.says(*said, finish=FinishReason.ERROR, error="the engine failed")
    async with serving(front) as client:
        answer = await client.post(CHAT, json={**HI, "stream": True})
    assert "[DONE]" not in answer.text
    if answer.status_code == 200:
        assert validate_stream(answer.text.split("\n")).error["message"] == "the engine failed"
    else:
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "the engine failed"


# Source: sgl-project/sglang#28601 (B062); the rule here: one entry for each completion token
async def test_streamed_logprobs_are_complete_and_equal_the_whole() -> None:
    front = LocalFront()
    # Held back text: a letter in two tokens, a stop string that does not come, an end without text.
    front.says("a", b"\xc3", b"\xa9", "S", "b")
    body = {**HI, "logprobs": True, "top_logprobs": 1, "stop": ["ST"]}
    async with serving(front) as client:
        streamed = await stream(client, {**body, "stream_options": {"include_usage": True}})
        whole = (await client.post(CHAT, json=body)).json()
    assert streamed.text == "aéSb"
    assert len(streamed.choices[0].logprobs) == streamed.usage["completion_tokens"]
    assert streamed.choices[0].logprobs == whole["choices"][0]["logprobs"]["content"]


# Source: huggingface/text-generation-inference#2344 (B064)
@pytest.mark.parametrize("finish", list(FinishReason))
async def test_finish_reasons_are_openais(finish: FinishReason) -> None:
    front = LocalFront()
    front.says("a", finish=finish)
    async with serving(front) as client:
        streamed = await stream(client, HI)
        whole = await client.post(CHAT, json=HI)
    if finish in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS):
        assert streamed.choices[0].finish_reason == whole.json()["choices"][0]["finish_reason"] == finish
        assert finish in FINISH_REASONS
    else:
        assert streamed.error is not None
        assert whole.status_code >= 500


# Source: waybarrios/vllm-mlx#109 (B065)
async def test_letters_in_several_tokens_come_whole() -> None:
    front = LocalFront()
    front.says(b"\x20\xc5", b"\xa1\xc4", b"\x8d\xc3", b"\xad\x21")
    async with serving(front) as client:
        streamed = await stream(client, HI)
    assert streamed.text == " ščí!"
    assert all("\ufffd" not in json.dumps(chunk, ensure_ascii=False) for chunk in streamed.chunks)


# Source: vllm-project/vllm#3574 (B068)
@pytest.mark.parametrize(
    ("pieces", "text"), [(("abc", "QR", "S", "TU", "V", "w"), "abc"), (("abc", "QRS", "w"), "abcQRSw")]
)
async def test_the_beginning_of_a_stop_string_is_not_streamed(pieces: tuple[str, ...], text: str) -> None:
    front = LocalFront()
    front.says(*pieces)
    async with serving(front) as client:
        streamed = await stream(client, {**HI, "stop": ["QRSTUV"]})
    assert streamed.text == text
    assert streamed.choices[0].finish_reason == "stop"


# Source: ggml-org/llama.cpp#9867 (B069)
async def test_text_held_back_is_not_lost_at_the_end() -> None:
    front = LocalFront()
    front.says("Why", "?", "\n")
    body = {**HI, "stop": ["\n\n"]}
    async with serving(front) as client:
        streamed = await stream(client, body)
        whole = (await client.post(CHAT, json=body)).json()
    assert streamed.text == whole["choices"][0]["message"]["content"] == "Why?\n"


# Source: vllm-project/vllm#3672 (B071)
@pytest.mark.parametrize(("include", "text"), [(False, "xxy"), (True, "xxyST")])
async def test_a_stop_string_cuts_inside_a_token(include: bool, text: str) -> None:
    front = LocalFront()
    front.says("xx", "yS", "Tz")
    body = {**HI, "stop": ["ST"], "include_stop_str_in_output": include}
    async with serving(front) as client:
        streamed = await stream(client, body)
        (choice,) = (await client.post(CHAT, json=body)).json()["choices"]
    assert streamed.text == choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == streamed.choices[0].stop_reason == "ST"
