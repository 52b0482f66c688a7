"""Thinking budgets with the official ``openai`` client: the answer follows, streamed and whole alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from llmkit.testing.bytes_tokenizer import VOCAB_SIZE
from llmkit.testing.http import ServerProcess
from tests.acceptance.conftest import Scripted
from tests.acceptance.test_tool_calls import CITY, SPECIAL, TEMPLATE, WEATHER, both_ways

BEGIN, END = VOCAB_SIZE, VOCAB_SIZE + 1
THOUGHT = "0123456789"
RULES = [
    {"match": "long-case", "tokens": [BEGIN, *f"{THOUGHT} The answer.".encode()]},
    {"match": "short-case", "tokens": [BEGIN, *THOUGHT.encode(), END, *b"The answer."]},
    {"match": "call-case", "tokens": [BEGIN, *f"{THOUGHT}#{WEATHER}".encode()]},
    {"match": "open-case", "tokens": [*f"{THOUGHT}#{WEATHER}".encode()]},
    {"match": "plain-case", "text": "No thought, a rather long answer."},
    {"match": "spelt-case", "text": "<think>0123456789ABCDEFGH The answer."},
]
SCRIPT = {"rules": [{**rule, "obeys": True} for rule in RULES]}
"""The end of reasoning comes in the place of what the script has there."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    servers = Scripted(tmp_path_factory.mktemp("s"))
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def thinking_server(servers: Scripted) -> ServerProcess:
    flags = ["--tool-call-parser=hermes", "--reasoning-parser=qwen3"]
    return servers.start(*flags, script=SCRIPT, model={"chat_template": TEMPLATE, "special": SPECIAL})


@pytest.fixture
def client(thinking_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with client_of(thinking_server) as client:
        yield client


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def said(client: openai.OpenAI, case: str, budget: int, **fields: Any) -> Any:
    body = {"thinking_token_budget": budget, **fields.pop("body", {})}
    return both_ways(client, case, extra_body=body, **fields)


@pytest.mark.parametrize(("budget", "reasoning"), [(0, None), (1, "0"), (4, "0123"), (10, THOUGHT)])
def test_reasoning_ends_and_the_answer_follows(
    client: openai.OpenAI, budget: int, reasoning: str | None
) -> None:
    answer = said(client, "long-case", budget, tools=[])
    rest = f"{THOUGHT} The answer."[budget + 1 :]  # one place is the end's
    assert (answer.reasoning, answer.content, answer.finish_reason) == (reasoning, rest, "stop")


@pytest.mark.parametrize("budget", [10, 11, 1000])
def test_a_budget_that_is_not_used_up_changes_nothing(client: openai.OpenAI, budget: int) -> None:
    answer = said(client, "short-case", budget, tools=[])
    assert (answer.reasoning, answer.content) == (THOUGHT, "The answer.")
    assert vars(answer) == vars(both_ways(client, "short-case", tools=[]))


@pytest.mark.parametrize("budget", [0, 5])
def test_an_answer_without_reasoning_has_no_budget(client: openai.OpenAI, budget: int) -> None:
    answer = said(client, "plain-case", budget, tools=[])
    assert (answer.reasoning, answer.content) == (None, "No thought, a rather long answer.")


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]
)
@pytest.mark.parametrize("case", ["call-case", "open-case"])
def test_a_call_follows_a_forced_end(client: openai.OpenAI, choice: Any, case: str) -> None:
    body = {"chat_template_kwargs": {"open": True}} if case == "open-case" else {}
    answer = said(client, case, 10, tool_choice=choice, body=body)
    assert (answer.reasoning, answer.calls, answer.content) == (THOUGHT, [CITY], None)


def test_choices_have_a_budget_each(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "long-case"}],
        n=3,
        extra_body={"thinking_token_budget": 4},
    )
    assert [choice.message.reasoning_content for choice in answer.choices] == ["0123"] * 3  # type: ignore[attr-defined]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3 * len("0123")
    assert answer.usage.completion_tokens == 3 * len([BEGIN, *f"{THOUGHT} The answer.", "end of sequence"])


def test_an_end_of_several_tokens_among_drafts(servers: Scripted) -> None:
    """``</think>`` is eight tokens here; the prompt is full of drafts for the script."""
    flags = ["--reasoning-parser=qwen3", "--speculator=ngram"]
    server = servers.start(
        *flags, script=SCRIPT, model={"chat_template": TEMPLATE, "special": ("<a>", "<b>")}
    )
    with client_of(server) as client:
        answer = said(client, "spelt-case, as in <think>0123456789ABCDEFGH The answer.", 10, tools=[])
    assert (answer.reasoning, answer.content) == ("0123456789", " The answer.")


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--reasoning-parser=none", "--reasoning-parser NAME"),
        ("--reasoning-parser=identity", "the format identity has nothing that ends reasoning"),
    ],
)
def test_who_cannot_end_reasoning_refuses_a_budget(servers: Scripted, flag: str, why: str) -> None:
    with client_of(servers.start(flag, script=SCRIPT, model={"special": SPECIAL})) as client:
        with pytest.raises(openai.BadRequestError, match=why) as refused:
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "long-case"}],
                extra_body={"thinking_token_budget": 4},
            )
        assert refused.value.param == "thinking_token_budget"


def test_other_refusals(client: openai.OpenAI) -> None:
    def ask(**body: Any) -> Any:
        return client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "long-case"}], extra_body=body
        )

    for body, param in (
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"thinking_token_budget": "4"}, "thinking_token_budget"),
        ({"thinking_token_budget": 4, "use_beam_search": True, "n": 2}, "thinking_token_budget"),
        ({"thinking_token_budget": 4, "parse_output": False}, "parse_output"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(**body)
        assert refused.value.param == param
    with pytest.raises(openai.BadRequestError, match="it holds for conversations"):
        client.completions.create(model="tiny", prompt="a", extra_body={"thinking_token_budget": 4})
