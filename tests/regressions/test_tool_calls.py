"""Public reports about calls, reasoning and stop strings over HTTP, each with its right result."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.contracts import FinishReason
from llmkit.testing.http import StreamedChoice, validate_stream
from llmkit_reasoning_parsers.formats import FORMATS as REASONING
from llmkit_tool_parsers.json_formats import FORMATS as CALLS
from tests.core.server.local_front import LocalFront, serving

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("w", "a", "b")
]
OPEN = (
    "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
)


def front(template: str = "{% for m in messages %}{{ m.content }}\n{% endfor %}") -> LocalFront:
    return LocalFront(template=template, tool=CALLS["hermes"], reasoning=REASONING["qwen3"])


async def both(front: LocalFront, **fields: Any) -> StreamedChoice:
    """The choice, which is the same streamed and whole."""
    body = {"messages": HI, "tools": TOOLS, **fields}
    async with serving(front) as client:
        answer = await client.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
        async with client.stream("POST", CHAT, json={**body, "stream": True}) as stream:
            streamed = validate_stream([line async for line in stream.aiter_lines()]).choices[0]
    whole = answer.json()["choices"][0]
    message = whole["message"]
    assert (message["content"] or "") == streamed.text
    assert message.get("reasoning_content", "") == message.get("reasoning", "") == streamed.reasoning
    assert [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ] == [(call.name, call.arguments) for call in streamed.calls]
    assert whole["finish_reason"] == streamed.finish_reason
    assert whole["stop_reason"] == streamed.stop_reason
    if whole["logprobs"] is not None:
        assert whole["logprobs"]["content"] == streamed.logprobs
        assert len(streamed.logprobs) == answer.json()["usage"]["completion_tokens"]
    return streamed


# B031, vllm-project/vllm#53269
async def test_a_call_that_is_cut_off_is_not_reported_as_one() -> None:
    local = front()
    local.says('<tool_call>{"name": "w", "arguments": {"t": "abc', finish=FinishReason.LENGTH)
    choice = await both(local)
    assert choice.finish_reason == "length"
    assert "<tool_call>" not in choice.text


# B034, ollama/ollama#15457
async def test_parallel_calls_have_indices_of_their_own() -> None:
    local = front()
    local.says(
        '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n',
        '<tool_call>\n{"name": "b", "arguments": {"y": 2}}\n</tool_call>',
    )
    choice = await both(local)  # the checker of streams knows the rules of indices, ids and names
    assert [(call.name, call.arguments) for call in choice.calls] == [("a", '{"x": 1}'), ("b", '{"y": 2}')]
    assert choice.finish_reason == "tool_calls"


# B041, vllm-project/vllm#42691
async def test_reasoning_its_end_and_a_call_in_one_piece() -> None:
    local = front(OPEN)
    local.says("need a tool", ' now</think>\n<tool_call>{"name": "w", "arguments": {"a": 1}}</tool_call>')
    choice = await both(local)
    assert choice.reasoning.strip() == "need a tool now"
    assert choice.text.strip() == ""
    assert [(call.name, call.arguments) for call in choice.calls] == [("w", '{"a": 1}')]
    assert choice.finish_reason == "tool_calls"


# B047, vllm-project/vllm#51641
@pytest.mark.parametrize("stop", [[], ["ZZZZZZZZ"]])
async def test_a_stop_string_that_never_comes_changes_nothing(stop: list[str]) -> None:
    local = front(OPEN)
    local.says("one", " two", "</think>", "\n", "three")
    choice = await both(local, stop=stop)
    assert (choice.reasoning.strip(), choice.text.strip()) == ("one two", "three")


# B062, sgl-project/sglang#28601
async def test_every_token_has_its_logprob_once() -> None:
    local = front()
    local.says("<think>", "x", "</think>", "y", '<tool_call>{"name": "w", "arguments": {}}</tool_call>')
    choice = await both(local, logprobs=True, top_logprobs=1)
    assert (choice.reasoning, choice.text, choice.calls[0].arguments) == ("x", "y", "{}")


# B076, vllm-project/vllm#14550
async def test_a_stop_string_in_the_reasoning_ends_nothing() -> None:
    local = front(OPEN)
    local.says("blue or green", "</think>", "It is bl", "ue now")
    choice = await both(local, stop=["blue"])
    assert (choice.reasoning.strip(), choice.text) == ("blue or green", "It is ")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "blue")


# B156, vllm-project/vllm#9426
@pytest.mark.parametrize("fields", [{"tools": None}, {}])
async def test_no_call_where_none_may_come(fields: dict[str, Any]) -> None:
    local = front()
    said = '<tool_call>{"name": "w", "arguments": {}}</tool_call>'
    local.says(said)
    choice = await both(local, tool_choice="none", **fields)
    assert (choice.text, choice.calls, choice.finish_reason) == (said, [], "stop")


async def test_reasoning_may_be_left_out() -> None:
    local = front()
    local.says("<think>x</think>y")
    choice = await both(local, include_reasoning=False, logprobs=True)
    assert (choice.reasoning, choice.text) == ("", "y")
