"""Tool calls and reasoning with the official ``openai`` client: a stream's fold is the whole message."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from llmkit.testing.bytes_tokenizer import CHATML, VOCAB_SIZE
from llmkit.testing.http import ServerProcess, validate_stream
from tests.acceptance.conftest import Scripted

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    },
]
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CUT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zür'
SPECIAL = ("<think>", "</think>")


def thinks(thought: str, then: str) -> list[int]:
    """Token ids of reasoning between special tokens, and of what follows it."""
    return [VOCAB_SIZE, *thought.encode(), VOCAB_SIZE + 1, *then.encode()]


SCRIPT = {
    "rules": [
        {"match": "auto-case", "text": WEATHER},
        {"match": "text-case", "text": "No tool is needed."},
        {"match": "parallel-case", "text": f"{WEATHER}\n{NOW}"},
        {"match": "reasoning-case", "tokens": thinks("A city is named.\n", f"\n\n{WEATHER}")},
        {"match": "around-case", "text": f"Let me look. {WEATHER}Done."},
        {"match": "cut-case", "text": CUT},
        {"match": "forced-case", "text": WEATHER},
        {"match": "thought-case", "tokens": thinks("A city.\n", WEATHER)},
        {"match": "open-case", "tokens": thinks("A city.\n", WEATHER)[1:]},
    ]
}
TEMPLATE = CHATML.replace(
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}",
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + ('<think>\n' if open else '') }}",
).replace("message['content']", "(message['content'] or '')")


@pytest.fixture(scope="module")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Scripted(tmp_path_factory.mktemp("s"))
    flags = ["--tool-call-parser=hermes", "--reasoning-parser=qwen3", "--enable-auto-tool-choice"]
    yield servers.start(*flags, script=SCRIPT, model={"chat_template": TEMPLATE, "special": SPECIAL})
    servers.close()


@pytest.fixture
def client(tool_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Said:
    """A message, whole or put together from a stream, without the ids of its calls."""

    def __init__(self, message: Any, finish_reason: str) -> None:
        self.content = message.content or None
        self.reasoning = getattr(message, "reasoning_content", None) or None
        calls = message.tool_calls or []
        self.calls = [(call.function.name, call.function.arguments) for call in calls]
        self.finish_reason = finish_reason
        assert len({call.id for call in calls}) == len(calls)
        assert all(call.id.startswith("call_") and call.type == "function" for call in calls)


def both_ways(client: openai.OpenAI, case: str, **fields: Any) -> Said:
    """The answer, which is the same whole, streamed and through the client's own accumulator."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": case}],
        "tools": TOOLS,
        **fields,
    }
    choice = client.chat.completions.create(**asked).choices[0]
    whole = Said(choice.message, choice.finish_reason)
    if all(tool["function"].get("strict") for tool in asked["tools"]) or not asked["tools"]:
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion().choices[0]
        streamed = Said(final.message, final.finish_reason)
        assert vars(streamed) == vars(whole)
    assert vars(folded(client, asked)) == vars(whole)
    return whole


def folded(client: openai.OpenAI, asked: dict[str, Any]) -> Said:
    """The raw stream, its grammar checked, as a message."""
    url = str(client.base_url) + "chat/completions"
    body = {name: value for name, value in asked.items() if name != "extra_body"}
    body |= {**asked.get("extra_body", {}), "stream": True}
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=30) as answer:
        choice = validate_stream(answer.iter_lines()).choices[0]
    said = Said.__new__(Said)
    said.content, said.reasoning = choice.text or None, choice.reasoning or None
    said.calls = [(call.name, call.arguments) for call in choice.calls]
    assert choice.finish_reason is not None
    said.finish_reason = choice.finish_reason
    return said


CITY = ("get_weather", '{"city": "Zürich"}')


def test_auto(client: openai.OpenAI) -> None:
    said = both_ways(client, "auto-case")
    assert (said.calls, said.content, said.finish_reason) == ([CITY], None, "tool_calls")
    assert both_ways(client, "text-case").finish_reason == "stop"


def test_parallel(client: openai.OpenAI) -> None:
    said = both_ways(client, "parallel-case")
    assert (said.calls, said.finish_reason) == ([CITY, ("now", "{}")], "tool_calls")
    alone = both_ways(client, "parallel-case", parallel_tool_calls=False)
    assert (alone.calls, alone.finish_reason) == ([CITY], "tool_calls")


def test_reasoning_then_a_call(client: openai.OpenAI) -> None:
    said = both_ways(client, "reasoning-case")
    assert said.reasoning is not None
    assert (said.reasoning.strip(), said.calls, said.finish_reason) == (
        "A city is named.",
        [CITY],
        "tool_calls",
    )
    assert not (said.content or "").strip()


def test_a_call_between_text(client: openai.OpenAI) -> None:
    said = both_ways(client, "around-case")
    assert (said.content, said.calls, said.finish_reason) == ("Let me look. Done.", [CITY], "tool_calls")


def test_an_answer_that_is_cut_off(client: openai.OpenAI) -> None:
    """Length beats calls: nobody should run half a one."""
    said = both_ways(client, "auto-case", max_tokens=70)
    assert (said.finish_reason, said.content) == ("length", None)
    assert [name for name, _ in said.calls] == ["get_weather"]
    assert CITY[1].startswith(said.calls[0][1])
    assert both_ways(client, "parallel-case", max_tokens=len(WEATHER.encode()) + 5).finish_reason == "length"
    assert both_ways(client, "cut-case").finish_reason == "stop"  # no call was completed


@pytest.mark.parametrize(
    ("choice", "ends"),
    [
        pytest.param("required", "tool_calls", id="required"),
        pytest.param({"type": "function", "function": {"name": "get_weather"}}, "stop", id="named"),
        pytest.param(
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                },
            },
            "tool_calls",
            id="allowed",
        ),
    ],
)
@pytest.mark.parametrize("case", ["forced-case", "thought-case"])
def test_a_call_that_is_asked_for(client: openai.OpenAI, choice: Any, ends: str, case: str) -> None:
    """The grammar is in force, so a script that writes anything else ends with an error."""
    said = both_ways(client, case, tool_choice=choice)
    assert (said.calls, said.content, said.finish_reason) == ([CITY], None, ends)
    assert (said.reasoning or "").strip() == ("A city." if case == "thought-case" else "")
    with pytest.raises(openai.InternalServerError, match="grammar"):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "text-case"}], tools=TOOLS, tool_choice=choice
        )


def test_a_call_behind_reasoning_that_the_prompt_begins(client: openai.OpenAI) -> None:
    body = {"chat_template_kwargs": {"open": True}}
    choice = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "open-case"}],
        tools=TOOLS,
        tool_choice="required",
        extra_body=body,
    ).choices[0]
    said = Said(choice.message, choice.finish_reason)
    assert said.reasoning is not None
    assert (said.reasoning.strip(), said.calls, said.finish_reason) == ("A city.", [CITY], "tool_calls")


def test_none(client: openai.OpenAI) -> None:
    said = both_ways(client, "auto-case", tool_choice="none")
    assert (said.calls, said.content, said.finish_reason) == ([], WEATHER, "stop")


def test_the_off_switch(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "reasoning-case"}],
        tools=TOOLS,
        extra_body={"parse_output": False, "skip_special_tokens": False},
    )
    message = answer.choices[0].message
    assert message.content is not None
    assert message.content.startswith("<think>")
    assert WEATHER in message.content
    assert message.tool_calls is None


def test_strict_tools_through_the_clients_own_accumulator(client: openai.OpenAI) -> None:
    strict = json.loads(json.dumps(TOOLS[:1]))
    strict[0]["function"]["strict"] = True
    said = both_ways(client, "around-case", tools=strict)
    assert (said.calls, said.content, said.finish_reason) == ([CITY], "Let me look. Done.", "tool_calls")


def test_a_call_and_its_result_go_back(client: openai.OpenAI) -> None:
    call = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "auto-case"}], tools=TOOLS
    ).choices[0]
    assert call.message.tool_calls is not None
    history: list[Any] = [
        {"role": "user", "content": "text-case"},
        call.message,
        {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "12 degrees"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=history, tools=TOOLS)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "No tool is needed."


def test_tools_where_no_parser_is_known(server: ServerProcess) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="--tool-call-parser") as refused,
    ):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], tools=TOOLS
        )
    assert refused.value.param == "tools"


def test_the_summary_says_how_answers_are_parsed(tool_server: ServerProcess, server: ServerProcess) -> None:
    summary = summary_of(tool_server)
    assert "hermes (by name; the chat template does not show tools to the model)" in summary
    assert "qwen3 (by name)" in summary
    assert "none (auto: no format recognizes" in summary_of(server)


def summary_of(server: ServerProcess) -> str:
    """What it says when it is ready, without the table around it; it may answer a moment before."""
    while "listening" not in server.log:
        time.sleep(0.05)
    return " ".join(server.log.replace("│", " ").split())
