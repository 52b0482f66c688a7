"""Structured output over HTTP: a real server and engine, a tiny random model that would say anything."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from llmkit.frontend.grammars import DEADLINE_S
from llmkit.testing import bytes_tokenizer
from llmkit.testing.http import ServerProcess, validate_stream
from tests.plugins.grammars.hostile import HOSTILE

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = bytes_tokenizer.write(
        tmp_path_factory.mktemp("structured") / "tiny", max_position_embeddings=65536
    )
    with ServerProcess([str(model), "--load-format=dummy", "--max-model-len=65536"]) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post(CHAT, json={"messages": HI, "max_tokens": 300, "seed": 1, **fields})


def content(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"]
    return text


def refusal(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The error of a 400; afterwards the server must be well."""
    answer = ask(client, **fields)
    assert answer.status_code == 400, answer.text
    assert client.get("/health").status_code == 200
    error: dict[str, Any] = answer.json()["error"]
    return error


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **more}}


# Source: vllm-project/vllm#17248 (B093)
def test_a_wrong_schema_is_a_400_that_names_the_field(client: httpx.Client) -> None:
    error = refusal(client, response_format=schema_format({"type": "objekt"}))
    assert error["param"] == "response_format"
    assert error["message"].startswith('response_format: #/type is "objekt"; it must be one of')


# Source: vllm-project/vllm#20195 (B095)
def test_an_empty_list_of_choices_is_a_400(client: httpx.Client) -> None:
    for fields in ({"structured_outputs": {"choice": []}}, {"guided_choice": []}):
        error = refusal(client, **fields)
        assert error["param"] == next(iter(fields))
        assert "at least one choice" in error["message"]


# Source: ggml-org/llama.cpp#19051 (B097)
def test_an_answer_matches_the_pattern_or_there_is_none(client: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^hi(?<x>there)\\!$"}},
        "required": ["a"],
    }
    assert json.loads(content(ask(client, response_format=schema_format(schema, strict=True)))) == {
        "a": "hithere!"
    }
    ahead = {"type": "string", "pattern": "^(?=x)y$"}
    assert refusal(client, response_format=schema_format(ahead))["param"] == "response_format"


# Source: vllm-project/vllm#39138 (B100)
def test_without_thinking_the_grammar_begins_at_once(client: httpx.Client) -> None:
    fields = {
        "structured_outputs": {"choice": ["yes", "no"]},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert content(ask(client, logit_bias={str(ord("m")): 100}, **fields)) in ("yes", "no")


def test_streams_and_completions_are_constrained_too(client: httpx.Client) -> None:
    body = {"messages": HI, "guided_regex": "[0-9]{3}-[0-9]{4}", "max_tokens": 20, "n": 3, "seed": 4}
    whole = [choice["message"]["content"] for choice in client.post(CHAT, json=body).json()["choices"]]
    assert all(re.fullmatch("[0-9]{3}-[0-9]{4}", text) for text in whole)
    with client.stream("POST", CHAT, json={**body, "stream": True}) as answer:
        streamed = validate_stream(list(answer.iter_lines()))
    assert [streamed.choices[index].text for index in range(3)] == whole
    plain = client.post(
        "/v1/completions", json={"prompt": "hi", "guided_choice": ["yes", "no"], "max_tokens": 9}
    )
    assert plain.json()["choices"][0]["text"] in ("yes", "no")


def test_min_tokens_keeps_the_end_away_while_the_grammar_may_go_on(client: httpx.Client) -> None:
    for end_id in (bytes_tokenizer.EOS_ID, ord("b")):
        end = {"logit_bias": {str(end_id): 100}, "stop_token_ids": [ord("b")]}
        fields = {"guided_regex": "[ab]+", "max_tokens": 60, "temperature": 0.0, **end}
        assert ask(client, **fields).json()["usage"]["completion_tokens"] < 20
        usage = ask(client, min_tokens=20, **fields).json()["usage"]
        assert usage["completion_tokens"] >= 20
    bounded = ask(client, guided_regex="[ab]{1,9}", min_tokens=5, max_tokens=60, **end)
    assert 5 <= len(content(bounded)) <= 9


def test_a_complete_answer_ends_whatever_min_tokens_says(client: httpx.Client) -> None:
    answer = ask(client, guided_choice=["red", "green"], min_tokens=20)
    assert content(answer) in ("red", "green")
    assert answer.json()["usage"]["completion_tokens"] < 20


def test_fields_that_leave_nothing_together_are_named(client: httpx.Client) -> None:
    error = refusal(client, structured_outputs={"choice": ["yes"]}, allowed_token_ids=[ord("n")])
    assert (error["param"], error["code"]) == ("allowed_token_ids, structured_outputs", "unsatisfiable")
    assert "this request has allowed_token_ids, structured_outputs" in error["message"]


def test_openais_client_parses_what_comes(server: ServerProcess) -> None:
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=12)
        age: int = Field(ge=0, le=150)
        married: bool | None

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.parse(
        model=client.models.list().data[0].id,
        messages=HI,
        response_format=Person,
        max_tokens=300,  # type: ignore[arg-type]
    )
    person = answer.choices[0].message.parsed
    assert person is not None
    assert len(person.name) <= 12
    assert 0 <= person.age <= 150


def test_hostile_requests_are_refused_while_streams_flow(server: ServerProcess, client: httpx.Client) -> None:
    assert content(ask(client, guided_choice=["warm"])) == "warm"
    stop = threading.Event()
    came: list[float] = []

    def stream() -> None:
        body = {"messages": HI, "stream": True, "max_tokens": 60_000, "ignore_eos": True}
        with (
            httpx.Client(base_url=server.url, timeout=60) as other,
            other.stream("POST", CHAT, json=body) as answer,
        ):
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    came.append(time.monotonic())
                if stop.is_set():
                    return

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        for name, wanted in HOSTILE.items():
            began, before = time.monotonic(), len(came)
            kind = {wanted.kind: wanted.source}
            assert refusal(client, structured_outputs=kind)["param"] == "structured_outputs", name
            took = time.monotonic() - began
            flowed = len(came) - before
            print(f"{name}: refused in {took:.2f} s, {flowed} pieces of the stream meanwhile")
            assert took < DEADLINE_S + 10, "a guard: the compiling child keeps the deadline itself"
            if took > 1:
                assert flowed > 0, "the stream stood still"
    finally:
        stop.set()
        thread.join(30)
    assert content(ask(client, guided_choice=["still here"])) == "still here"


def test_hostile_requests_at_once_are_all_refused(server: ServerProcess, client: httpx.Client) -> None:
    def refused(name: str) -> str:
        wanted = HOSTILE[name]
        with httpx.Client(base_url=server.url, timeout=60) as other:
            return str(refusal(other, structured_outputs={wanted.kind: wanted.source})["param"])

    with ThreadPoolExecutor(len(HOSTILE)) as pool:
        assert list(pool.map(refused, HOSTILE)) == ["structured_outputs"] * len(HOSTILE)
    assert content(ask(client, guided_choice=["and here"])) == "and here"
