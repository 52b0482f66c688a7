"""Time to the first token of a chat's second turn, with and without what the first one left behind.

Starts ``llmkit serve``, sends a chat of about 2,000 tokens and then its second turn, warm and cold (under
another cache salt) in turn. Prints the median times to the first token, their ratio, and the prompt tokens
that each computed. With ``--offload`` other chats take the cache's place in between, and the warm turn
comes from host memory.

    python bench/prefix_cache.py [--rounds 3] [--tokens 2000] [--offload] [--model smollm2-135m]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import httpx

from llmkit.testing.http import ServerProcess, read_metrics

TOKENS_A_DAY = 13.3
Messages = list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--offload", action="store_true")
    arguments = parser.parse_args()
    context = 2 * arguments.tokens
    flags = [arguments.model, f"--max-model-len={context}"]
    if arguments.offload:
        # Room for one chat: every other one evicts it.
        flags += ["--kv-connector=offload", f"--num-gpu-blocks-override={context // 16 + 1}"]
    with (
        ServerProcess(flags, ready_timeout_s=300) as server,
        httpx.Client(base_url=server.url, timeout=600) as http,
    ):
        report([measure(http, arguments, number) for number in range(arguments.rounds)])


def measure(http: httpx.Client, arguments: argparse.Namespace, number: int) -> dict[str, float]:
    """One chat: the seconds to the first token of its second turn, and the tokens computed for it."""
    days = int(arguments.tokens / TOKENS_A_DAY)
    chat = [{"role": "user", "content": story(1000 * number, days)}]
    text, _, _ = ask(http, arguments.model, chat)
    chat += [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "What did it see on the last day?"},
    ]
    if arguments.offload:
        for other in range(1, 3):
            ask(
                http, arguments.model, [{"role": "user", "content": story(1000 * number + 300 * other, days)}]
            )
    _, warm_s, warm_tokens = ask(http, arguments.model, chat)
    _, cold_s, cold_tokens = ask(http, arguments.model, chat, cache_salt=f"cold {number}")
    return {"warm_s": warm_s, "cold_s": cold_s, "warm_tokens": warm_tokens, "cold_tokens": cold_tokens}


def ask(http: httpx.Client, model: str, messages: Messages, **fields: Any) -> tuple[str, float, float]:
    """The answer, seconds to its first token, and the prompt tokens computed for it."""
    before = computed(http)
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, "stream": True, **fields}
    began, first, text = time.perf_counter(), 0.0, ""
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            delta = json.loads(line[6:])["choices"][0]["delta"]
            if delta.get("content"):
                first = first or time.perf_counter() - began
                text += delta["content"]
    return text, first, computed(http) - before


def computed(http: httpx.Client) -> float:
    return read_metrics(http.get("/metrics").raise_for_status().text)["prompt_tokens_total"]


def story(first: int, days: int) -> str:
    return " ".join(f"On day {day} the ship saw {day * 7 % 101} birds." for day in range(first, first + days))


def report(rounds: list[dict[str, float]]) -> None:
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print(f"second turn, {len(rounds)} rounds, medians")
    for turn in ("cold", "warm"):
        tokens, seconds = medians[f"{turn}_tokens"], medians[f"{turn}_s"]
        print(f"{turn} {tokens:6.0f} prompt tokens computed, first token after {seconds:.3f} s")
    print(f"ratio {medians['cold_s'] / medians['warm_s']:.1f}")


if __name__ == "__main__":
    main()
