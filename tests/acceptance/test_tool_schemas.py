"""Calls that are asked for, on a small real model at temperature 1: each validates against its schema.

Where a schema lets it, a small model may go on for ever, so a call that ``max_tokens`` cut is asked for again
with another seed; each tool must come to a call, and no complete call may be invalid.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat.chat_completion import Choice

from llmkit.testing.http import ServerProcess

ROWS = Path(__file__).parents[1] / "plugins" / "grammars" / "api_schemas.jsonl"
SCHEMAS: dict[str, Any] = {
    row["name"]: row["schema"]
    for row in map(json.loads, ROWS.read_text().splitlines())
    if row["schema"].get("type") == "object"
}
FEW = ("openai-weather-tool", "chess-move")
SEEDS = range(1, 9)
VALIDATOR = jsonschema.Draft202012Validator

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ["--max-model-len=1024", "--max-num-seqs=32", "--tool-call-parser=hermes"]
    # Deterministic: what a tool comes to does not depend on which calls are made beside it.
    with ServerProcess(["smollm2-135m", "--deterministic", *flags]) as server:
        yield server


async def check_calls(server: ServerProcess, names: list[str], choice: str, most: int) -> None:
    """All tools at once, each in a conversation of its own."""
    missing = names
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=900) as client:
        for name in names:  # compiles its grammar while the machine has nothing else to do
            await asked(client, name, choice, seed=0, most=1)
        for seed in SEEDS:
            came = await asyncio.gather(*(called(client, name, choice, seed, most) for name in missing))
            missing = [name for name, complete in zip(missing, came, strict=True) if not complete]
            if not missing:
                return
    pytest.fail(f"{missing} came to no call with any of {len(SEEDS)} seeds")


async def called(client: openai.AsyncOpenAI, name: str, choice: str, seed: int, most: int) -> bool:
    """Whether the model came to the end of a call, which then is valid."""
    given = await asked(client, name, choice, seed, most)
    assert not given.message.content
    if given.finish_reason == "length":
        return False
    (call,) = given.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == name
    VALIDATOR(SCHEMAS[name], format_checker=VALIDATOR.FORMAT_CHECKER).validate(
        json.loads(call.function.arguments)
    )
    return True


async def asked(client: openai.AsyncOpenAI, name: str, choice: str, seed: int, most: int) -> Choice:
    tool = {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}}
    other = {"type": "function", "function": {"name": "nothing", "parameters": {}}}
    body: dict[str, Any] = {
        "tools": [tool] if choice == "required" else [other, tool],
        "tool_choice": {"type": "function", "function": {"name": name}} if choice == "named" else choice,
    }
    answer = await client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": f"Call {name}."}],
        temperature=1.0,
        seed=seed,
        max_tokens=most,
        parallel_tool_calls=False,
        **body,
    )
    return answer.choices[0]


@pytest.mark.parametrize("choice", ["required", "named"])
async def test_a_few_tools(server: ServerProcess, choice: str) -> None:
    await check_calls(server, list(FEW), choice, 100)


@pytest.mark.full
@pytest.mark.timeout(1800)  # thousands of tokens on a machine that may be busy
@pytest.mark.parametrize("choice", ["required", "named"])
async def test_thirty_tools(server: ServerProcess, choice: str) -> None:
    assert len(SCHEMAS) >= 30
    await check_calls(server, list(SCHEMAS), choice, 400)
