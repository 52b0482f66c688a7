"""``llmkit bench serve`` against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from llmkit.testing.http import ServerProcess

WORD = 10
"""More tokens than any word of the prompts has, a byte each."""


def bench(server: ServerProcess, *flags: str) -> subprocess.CompletedProcess[str]:
    words = ["bench", "serve", "--base-url", server.url, "--num-prompts=4", "--output-len=3", *flags]
    return subprocess.run(
        [sys.executable, "-m", "llmkit_cli.main", *words], capture_output=True, text=True, timeout=120
    )


def figures(server: ServerProcess, *flags: str) -> dict[str, Any]:
    done = bench(server, "--json=-", *flags)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_prompts_are_as_long_as_asked_for_with_the_template_and_without(server: ServerProcess) -> None:
    for flags in ((), ("--chat",), ("--chat", "--prefix-len=40")):
        found = figures(server, "--input-len=100", *flags)
        assert (found["requests"], found["failed"], found["output_tokens"]) == (4, 0, 12)
        assert 100 - 2 * WORD <= found["prompt_tokens"] / 4 <= 101, flags
        assert found["prompt_lengths"] == "exact to within a word"
        assert found["ttft_ms"]["median"] <= found["ttft_ms"]["p99"] <= found["ttft_ms"]["max"]


def test_a_template_that_leaves_no_room_is_named(server: ServerProcess) -> None:
    done = bench(server, "--chat", "--input-len=5")
    assert done.returncode == 2
    assert "--input-len is 5, of which the chat template takes" in done.stderr


def test_the_report_is_a_table(server: ServerProcess) -> None:
    done = bench(server, "--input-len=30")
    assert done.returncode == 0, done.stderr
    assert "time to first token" in done.stdout
