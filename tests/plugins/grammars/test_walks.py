"""Random answers to schemas of real APIs, byte by byte: whatever the masks let through validates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmkit.contracts import GrammarBackend, StructuredOutput
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, walk

VALIDATOR = jsonschema.Draft202012Validator
ROWS = [
    json.loads(line) for line in (Path(__file__).parent / "api_schemas.jsonl").read_text().strip().split("\n")
]


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def backend(request: Any) -> GrammarBackend:
    made: GrammarBackend = create("grammar", request.param, SPEC)
    return made


def ended_walks(backend: GrammarBackend, seeds: int, most: int) -> int:
    """How many of the walks came to an end; each that did is a valid answer."""
    ended = 0
    for row in ROWS:
        try:
            grammar = backend.load(backend.compile(StructuredOutput("json", json.dumps(row["schema"]))))
        except ValueError:
            continue  # the other backend honours it: test_every_schema_is_honoured
        validator = VALIDATOR(row["schema"], format_checker=VALIDATOR.FORMAT_CHECKER)
        for seed in range(seeds):
            text, complete = walk(grammar, random.Random(seed), most)
            if complete:
                ended += 1
                validator.validate(json.loads(text.decode(errors="replace")))
    return ended


def test_every_schema_is_honoured() -> None:
    backend = create("grammar", "llguidance", SPEC)
    for row in ROWS:
        assert backend.compile(StructuredOutput("json", json.dumps(row["schema"])))


def test_random_answers_validate(backend: GrammarBackend) -> None:
    assert ended_walks(backend, seeds=2, most=250) > 4


@pytest.mark.full
def test_many_random_answers_validate(backend: GrammarBackend) -> None:
    assert ended_walks(backend, seeds=100, most=400) > 200
