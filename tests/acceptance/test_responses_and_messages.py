"""The official clients of OpenAI and Anthropic on ``/v1/responses`` and ``/v1/messages``, sync and async."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from llmkit.testing.http import ServerProcess
from llmkit.testing.messages import validate_messages_stream
from llmkit.testing.responses import validate_responses_stream
from tests.acceptance.conftest import Scripted
from tests.acceptance.test_tool_calls import SCRIPT, SPECIAL, TEMPLATE

FUNCTION: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TOOL: Any = {"name": "get_weather", "input_schema": FUNCTION["parameters"]}
CASES = ("auto-case", "text-case", "parallel-case", "reasoning-case", "around-case", "cut-case")
SLOW = {"match": "slowly", "text": "0123456789" * 8, "delay_ms": 20}
KEYED = "a key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Scripted(tmp_path_factory.mktemp("s"))
    flags = ["--tool-call-parser=hermes", "--reasoning-parser=qwen3", f"--api-key={KEYED}"]
    script = {"rules": [*SCRIPT["rules"], SLOW]}
    yield servers.start(*flags, script=script, model={"chat_template": TEMPLATE, "special": SPECIAL})
    servers.close()


@pytest.fixture
def responses(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYED, max_retries=0) as client:
        yield client.responses


@pytest.fixture
def messages(server: ServerProcess) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEYED, max_retries=0) as client:
        yield client.messages


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


# ---- responses ----


def test_a_tool_call_round_trip_of_responses(responses: Any) -> None:
    first = responses.create(model="tiny", input="auto-case", tools=[FUNCTION])
    (call,) = first.output
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", '{"city": "Zürich"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = responses.create(model="tiny", input=[output], previous_response_id=first.id)
    assert second.output
    items = list(responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_the_stream_helper_of_responses(responses: Any) -> None:
    with responses.stream(model="tiny", input="around-case", tools=[FUNCTION]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= kinds
    assert final.output_text.startswith("Let me look.")


def test_kept_responses_are_retrieved_followed_and_deleted(responses: Any) -> None:
    events = list(responses.create(model="tiny", input="text-case", stream=True))
    name = events[-1].response.id
    assert responses.retrieve(name).output_text == "No tool is needed."
    again = list(responses.retrieve(name, stream=True, starting_after=3))
    assert [event.sequence_number for event in again] == list(range(4, len(events)))
    responses.delete(name)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(name)


def test_background_responses_are_polled_and_cancelled(responses: Any) -> None:
    done = responses.create(model="tiny", input="text-case", background=True)
    while done.status in ("queued", "in_progress"):
        time.sleep(0.02)
        done = responses.retrieve(done.id)
    assert (done.status, done.output_text) == ("completed", "No tool is needed.")
    running = responses.create(model="tiny", input="slowly", background=True)
    assert responses.cancel(running.id).status == "cancelled"
    assert responses.retrieve(running.id).status == "cancelled"


def test_input_tokens_are_counted(responses: Any) -> None:
    counted = responses.input_tokens.count(model="tiny", input="text-case")
    answered = responses.create(model="tiny", input="text-case")
    assert counted.input_tokens == answered.usage.input_tokens


async def test_async_responses(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYED, max_retries=0) as client:
        whole = await client.responses.create(model="tiny", input="text-case")
        stream = await client.responses.create(model="tiny", input="text-case", stream=True)
        events = [event async for event in stream]
        assert events[-1].response.output_text == whole.output_text == "No tool is needed."
        assert (await client.responses.retrieve(whole.id)).output_text == whole.output_text
        await client.responses.delete(whole.id)


# ---- messages ----


def test_a_tool_call_round_trip_of_messages(messages: Any) -> None:
    asked = ask("auto-case")
    first = messages.create(model="tiny", max_tokens=200, messages=asked, tools=[TOOL])
    (block,) = first.content
    assert (block.type, block.input, first.stop_reason) == ("tool_use", {"city": "Zürich"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    asked += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = messages.create(model="tiny", max_tokens=200, messages=asked, tools=[TOOL])
    assert second.stop_reason in ("end_turn", "tool_use")


def test_the_stream_helper_of_messages(messages: Any) -> None:
    asked = ask("reasoning-case")
    with messages.stream(model="tiny", max_tokens=200, messages=asked, tools=[TOOL]) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "tool_use"]
    assert final.content[0].signature
    assert final.content[1].input == {"city": "Zürich"}


def test_tokens_of_messages_are_counted(messages: Any) -> None:
    counted = messages.count_tokens(model="tiny", messages=ask("text-case"))
    answered = messages.create(model="tiny", max_tokens=50, messages=ask("text-case"))
    assert counted.input_tokens == answered.usage.input_tokens + answered.usage.cache_read_input_tokens


async def test_async_messages(server: ServerProcess) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEYED, max_retries=0) as client:
        settings: Any = {"model": "tiny", "max_tokens": 50, "messages": ask("text-case")}
        whole = await client.messages.create(**settings)
        async with client.messages.stream(**settings) as stream:
            text = "".join([piece async for piece in stream.text_stream])
        assert text == whole.content[0].text == "No tool is needed."
        assert (await client.messages.count_tokens(model="tiny", messages=settings["messages"])).input_tokens


def test_failures_have_anthropics_types(server: ServerProcess, messages: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        messages.create(model="other", max_tokens=5, messages=ask("x"))
    with pytest.raises(anthropic.BadRequestError) as wrong:
        messages.create(model="tiny", max_tokens=0, messages=ask("x"))
    assert wrong.value.request_id
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model="tiny", max_tokens=5, messages=ask("x"))


# ---- whole and streamed ----


@pytest.mark.parametrize("count", [25, pytest.param(500, marks=pytest.mark.full)])
def test_random_requests_are_the_same_whole_and_streamed(server: ServerProcess, count: int) -> None:
    luck = random.Random(5)
    headers = {"x-api-key": KEYED}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30) as client:
        for _ in range(count):
            case, limit = luck.choice(CASES), luck.randint(1, 90)
            parallel, top = luck.choice([True, False]), luck.randint(0, 3)
            response = {
                "input": case,
                "tools": [FUNCTION],
                "max_output_tokens": limit,
                "parallel_tool_calls": parallel,
                "include": luck.choice([[], ["message.output_text.logprobs"]]),
                "top_logprobs": top,
            }
            whole = client.post("/v1/responses", json=response).json()
            with client.stream("POST", "/v1/responses", json={**response, "stream": True}) as answer:
                streamed = validate_responses_stream(answer.iter_lines()).response
            assert _bare(streamed) == _bare(whole)
            message = {
                "model": "tiny",
                "max_tokens": limit,
                "messages": ask(case),
                "tools": [TOOL],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": not parallel},
                "stop_sequences": luck.choice([[], ["oo"], ["Let"]]),
            }
            whole = client.post("/v1/messages", json=message).json()
            with client.stream("POST", "/v1/messages", json={**message, "stream": True}) as answer:
                said = validate_messages_stream(answer.iter_lines()).message
            assert _bare(said) == _bare(whole)


@pytest.mark.model
def test_the_small_model_says_the_same_on_every_route(model_server: ServerProcess) -> None:
    france = "What is the capital of France?"
    with openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="none") as client:
        settings: Any = {"model": "smollm2-135m", "temperature": 0}
        chat = client.chat.completions.create(messages=ask(france), max_tokens=24, **settings)
        text = chat.choices[0].message.content
        response = client.responses.create(input=france, max_output_tokens=24, **settings)
        assert response.output_text == text
        events = client.responses.create(input=france, max_output_tokens=24, stream=True, **settings)
        assert list(events)[-1].response.output_text == text
    with anthropic.Anthropic(base_url=model_server.url, api_key="none") as other:
        asked: Any = {"model": "smollm2-135m", "max_tokens": 24, "messages": ask(france)}
        greedy = {"temperature": 0}
        message = other.messages.create(**asked, extra_body=greedy)
        assert message.content[0].text == text
        with other.messages.stream(**asked, extra_body=greedy) as stream:
            assert "".join(stream.text_stream) == text


def _bare(answer: Any) -> Any:
    """Without what is new in each answer, and without what the prefix cache says."""
    if isinstance(answer, dict):
        fresh = ("id", "call_id", "created_at", "completed_at", "input_tokens", "cache_read_input_tokens")
        return {k: _bare(v) for k, v in answer.items() if k not in (*fresh, "input_tokens_details")}
    return [_bare(item) for item in answer] if isinstance(answer, list) else answer
