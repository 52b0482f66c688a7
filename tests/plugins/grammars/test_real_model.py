"""Schemas of real APIs on a small real model at temperature 1: every answer validates.

A small model may go on for ever where a schema lets it, so an answer that ``max_tokens`` cut is asked for
again with another seed; each schema must come to an end, and nothing that ended may be invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmkit import LLM, FinishReason, SamplingParams
from llmkit.contracts import StructuredOutput

SCHEMAS = {
    row["name"]: row["schema"]
    for row in map(json.loads, (Path(__file__).parent / "api_schemas.jsonl").read_text().strip().split("\n"))
}
FEW = ("openai-weather-tool", "japanese-address")
"""Of both backends, with an enum, patterns and unicode; short."""
SEEDS = range(1, 9)
VALIDATOR = jsonschema.Draft202012Validator

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", max_model_len=1024, max_num_seqs=48) as llm:
        yield llm


def answers(llm: LLM, names: list[str], seed: int, most: int) -> dict[str, Any]:
    asked = [[{"role": "user", "content": f"Write one example of {name} as JSON."}] for name in names]
    params = [
        SamplingParams(
            structured=StructuredOutput("json", json.dumps(SCHEMAS[name])),
            temperature=1.0,
            seed=seed,
            max_tokens=most,
        )
        for name in names
    ]
    return dict(zip(names, llm.chat(asked, params), strict=True))


def check_all(llm: LLM, names: list[str], most: int) -> None:
    cut = names
    for seed in SEEDS:
        given = answers(llm, cut, seed, most)
        for name, output in given.items():
            if output.finish_reason is FinishReason.STOP:
                VALIDATOR(SCHEMAS[name], format_checker=VALIDATOR.FORMAT_CHECKER).validate(
                    json.loads(output.text)
                )
        print(f"seed {seed}: {len(given)} asked, {sum(len(o.token_ids) for o in given.values())} tokens")
        cut = [name for name, output in given.items() if output.finish_reason is FinishReason.LENGTH]
        if not cut:
            return
    pytest.fail(f"{cut} did not come to an end with any of {len(SEEDS)} seeds")


def test_a_few_schemas(llm: LLM) -> None:
    check_all(llm, list(FEW), 100)


@pytest.mark.full
@pytest.mark.timeout(1800)  # thousands of tokens on a machine that may be busy
def test_all_schemas(llm: LLM) -> None:
    assert len(SCHEMAS) >= 40
    check_all(llm, list(SCHEMAS), 400)
