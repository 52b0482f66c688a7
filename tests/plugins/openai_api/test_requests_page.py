"""docs/requests.md: it names every field, and its limits are those that hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llmkit.config.flags import flags
from llmkit.contracts import LimitsConfig, SamplingParams
from llmkit.frontend import check
from llmkit_openai_api import schema
from llmkit_openai_api.fields import Ignored, Refused

PAGE = (Path(__file__).parents[3] / "docs" / "requests.md").read_text()
BOUNDS = LimitsConfig()
LIMITS = {
    "n": [BOUNDS.max_n],
    "best_of": [BOUNDS.max_best_of],
    "logprobs": [BOUNDS.max_logprobs],
    "stop": [BOUNDS.max_stop_strings, check.MAX_STOP_CHARS],
    "stop_token_ids": [check.MAX_STOP_TOKEN_IDS],
    "logit_bias": [check.MAX_LOGIT_BIAS],
    "bad_words": [check.MAX_BAD_WORDS, check.MAX_BAD_WORD_CHARS],
    "cache_salt": [check.MAX_SALT_CHARS],
    "plugin_args": [check.MAX_PLUGIN_ARGS_BYTES, check.MAX_PLUGIN_ARGS_DEPTH],
    "what an answer must be": [BOUNDS.max_schema_chars],
    "tools": [BOUNDS.max_tools],
    "messages": [BOUNDS.max_messages, schema.MAX_PARTS],
    "prompt": [BOUNDS.max_prompts],
    "one prompt": [],
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
    assert BOUNDS.max_messages <= schema.MAX_MESSAGES


def test_the_flags_that_move_them_are_there() -> None:
    said = {name for cell in table("Limits").values() for name in re.findall(r"--[\w-]+", cell)}
    others = {"--max-request-bytes", "--max-concurrent-requests-per-key"}
    assert said | others == {flag.names[0] for flag in flags() if flag.section == "limits"}


@pytest.mark.parametrize("body", [schema.ChatRequest, schema.CompletionRequest])
def test_every_field_is_one_of_samplingparams_or_its_place_in_python_is_said(
    body: type[schema.SamplingBody],
) -> None:
    said = {name for cell in table("In Python") for name in re.findall(r"`(\w+)`", cell)}
    honoured = {name for name, field in body.model_fields.items() if not marks(field)}
    assert honoured - set(SamplingParams.__struct_fields__) <= said


def marks(field: Any) -> list[Any]:
    return [mark for mark in field.metadata if isinstance(mark, Ignored | Refused)]


def test_what_the_page_places_in_python_is_a_field() -> None:
    fields = {*schema.ChatRequest.model_fields, *schema.CompletionRequest.model_fields}
    assert {name for cell in table("In Python") for name in re.findall(r"`(\w+)`", cell)} <= fields
