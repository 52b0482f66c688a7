"""docs/requests.md: it names every field, and its limits are those that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmkit.contracts import SamplingParams
from llmkit.frontend import check
from llmkit.types import MAX_CHOICES, MAX_GRAMMAR_CHARS, MAX_LOGPROBS, MAX_STOP_STRINGS
from llmkit_openai_api import completions, schema

PAGE = (Path(__file__).parents[3] / "docs" / "requests.md").read_text()
LIMITS = {
    "n": [MAX_CHOICES],
    "logprobs": [MAX_LOGPROBS],
    "stop": [MAX_STOP_STRINGS, check.MAX_STOP_CHARS],
    "stop_token_ids": [check.MAX_STOP_TOKEN_IDS],
    "logit_bias": [check.MAX_LOGIT_BIAS],
    "bad_words": [check.MAX_BAD_WORDS, check.MAX_BAD_WORD_CHARS],
    "cache_salt": [check.MAX_SALT_CHARS],
    "plugin_args": [check.MAX_PLUGIN_ARGS_BYTES, check.MAX_PLUGIN_ARGS_DEPTH],
    "what an answer must be": [MAX_GRAMMAR_CHARS],
    "messages": [schema.MAX_MESSAGES, schema.MAX_PARTS],
    "prompt": [completions.MAX_PROMPTS],
    "any other list or object": [schema.MAX_ITEMS],
}


def table(heading: str) -> dict[str, str]:
    """First cells to second ones."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| ")][1:]
    return {row[0]: row[1] for row in rows}


def test_the_limits_are_those_that_hold() -> None:
    said = {cell.split(",")[0].strip("`"): other for cell, other in table("Limits").items()}
    assert {name: [int(n) for n in re.findall(r"\d+", text)] for name, text in said.items()} == LIMITS
    assert schema.MAX_TOP_LOGPROBS == MAX_LOGPROBS


@pytest.mark.parametrize("body", [schema.ChatRequest, schema.CompletionRequest])
def test_every_field_is_one_of_samplingparams_or_its_place_in_python_is_said(
    body: type[schema.SamplingBody],
) -> None:
    said = {name for cell in table("In Python") for name in re.findall(r"`(\w+)`", cell)}
    assert set(body.model_fields) - set(SamplingParams.__struct_fields__) <= said


def test_what_the_page_places_in_python_is_a_field() -> None:
    fields = {*schema.ChatRequest.model_fields, *schema.CompletionRequest.model_fields}
    assert {name for cell in table("In Python") for name in re.findall(r"`(\w+)`", cell)} <= fields
