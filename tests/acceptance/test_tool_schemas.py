"""Calls that are asked for, on a small real model at temperature 1: each validates against its schema.

Where a schema lets it, a small model may go on for ever, so a call that ``max_tokens`` cut is asked for again
with another seed; each tool must come to a call, and no complete call may be invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmkit import LLM, SamplingParams

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
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", max_model_len=1024, max_num_seqs=32, tool_call_parser="hermes") as llm:
        yield llm


def check_calls(llm: LLM, names: list[str], choice: str, most: int) -> None:
    missing = names
    for seed in SEEDS:
        missing = [name for name in missing if not called(llm, name, choice, seed, most)]
        if not missing:
            return
    pytest.fail(f"{missing} came to no call with any of {len(SEEDS)} seeds")


def called(llm: LLM, name: str, choice: str, seed: int, most: int) -> bool:
    """Whether the model came to the end of a call; what it ended is valid."""
    tool = {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}}
    other = {"type": "function", "function": {"name": "nothing", "parameters": {}}}
    named = {"type": "function", "function": {"name": name}}
    (output,) = llm.chat(
        [{"role": "user", "content": f"Call {name}."}],
        SamplingParams(temperature=1.0, seed=seed, max_tokens=most),
        tools=[tool] if choice == "required" else [other, tool],
        tool_choice="required" if choice == "required" else named,
        parallel_tool_calls=False,
    )
    assert output.text.strip() == ""
    for call in output.tool_calls:
        assert call.name == name
        if call.complete:
            VALIDATOR(SCHEMAS[name], format_checker=VALIDATOR.FORMAT_CHECKER).validate(
                json.loads(call.arguments)
            )
    return any(call.complete for call in output.tool_calls)


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_few_tools(llm: LLM, choice: str) -> None:
    check_calls(llm, list(FEW), choice, 100)


@pytest.mark.full
@pytest.mark.timeout(1800)  # thousands of tokens on a machine that may be busy
@pytest.mark.parametrize("choice", ["required", "named"])
def test_thirty_tools(llm: LLM, choice: str) -> None:
    assert len(SCHEMAS) >= 30
    check_calls(llm, list(SCHEMAS), choice, 400)
