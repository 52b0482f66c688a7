"""A chat's second turn computes what is new in it, and nothing else."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from llmkit.testing.http import ServerProcess, read_metrics

BLOCK = 16


def story(first: int, last: int) -> str:
    return " ".join(f"On day {day} the ship saw {day * 7 % 101} birds." for day in range(first, last))


def counters(client: httpx.Client) -> dict[str, float]:
    return read_metrics(client.get("/metrics").raise_for_status().text)


def ask(client: httpx.Client, messages: list[dict[str, str]], **fields: Any) -> tuple[str, dict[str, Any]]:
    """The answer and what it used, with the prompt tokens that were computed for it."""
    before = counters(client)
    body = {"model": "smollm2-135m", "messages": messages, "max_tokens": 12, "temperature": 0, **fields}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    after = counters(client)
    usage = answer["usage"]
    usage["computed"] = after["prompt_tokens_total"] - before["prompt_tokens_total"]
    usage["hits"] = after["prefix_cache_hits_total"] - before["prefix_cache_hits_total"]
    return answer["choices"][0]["message"]["content"], usage


@pytest.mark.model
def test_the_second_turn_of_a_long_chat_computes_only_what_is_new(model_server: ServerProcess) -> None:
    with httpx.Client(base_url=model_server.url, timeout=120) as client:
        messages = [{"role": "user", "content": story(0, 147)}]
        # Salted: others have asked this server with the same system prompt.
        text, first = ask(client, messages, cache_salt="a chat")
        assert first["computed"] == first["prompt_tokens"], "the first turn finds nothing"
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": "How many birds did the ship see on day 3?"},
        ]
        warm, second = ask(client, messages, cache_salt="a chat")
        cold, again = ask(client, messages, cache_salt="nobody else's")
    assert 1900 < first["prompt_tokens"] < second["prompt_tokens"] < 2048
    assert second["computed"] == second["prompt_tokens"] - second["hits"]
    assert second["prompt_tokens_details"]["cached_tokens"] == second["hits"]
    # Whole blocks of the first turn are there; of the answer, all but what is left of a block.
    new = second["prompt_tokens"] - first["prompt_tokens"]
    assert second["computed"] <= new + BLOCK
    assert again["computed"] == again["prompt_tokens"]
    assert warm == cold
