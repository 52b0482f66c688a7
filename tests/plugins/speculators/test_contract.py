"""The speculators that ship with llmkit keep the contract."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from llmkit import StartupError
from llmkit.contracts import Config, SpeculationConfig, Speculator, SpeculatorSpec
from llmkit.testing.components import create
from llmkit.testing.policies import MODEL
from llmkit.testing.speculators import NUM_DRAFTS, SpeculatorContract, histories, open_draft
from llmkit_speculators.plugin import refuses_draft, refuses_ngram


class TestNgram(SpeculatorContract):
    def make_speculator(self, spec: SpeculatorSpec) -> Speculator:
        made: Speculator = create("speculator", "ngram", spec)
        return made


class TestDraft(SpeculatorContract):
    def make_speculator(self, spec: SpeculatorSpec) -> Speculator:
        made: Speculator = create("speculator", "draft", spec)
        return made

    def speculation(self) -> SpeculationConfig:
        return SpeculationConfig(num_speculative_tokens=NUM_DRAFTS, draft_model="itself")


def spec(vocab_size: int = MODEL.vocab_size, **settings: object) -> SpeculatorSpec:
    return SpeculatorSpec(Config(speculation=SpeculationConfig(**settings)), vocab_size, 48, open_draft)


def test_each_says_why_it_does_not_suit() -> None:
    assert refuses_draft(spec()) == "it needs --draft-model"
    assert refuses_draft(spec(draft_model="x")) is None
    assert refuses_ngram(spec(draft_model="x")) == "--draft-model is 'x', and it uses no model"
    assert "must not be above" in str(refuses_ngram(spec(prompt_lookup_min=3, prompt_lookup_max=2)))
    assert refuses_ngram(spec()) is None


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(StartupError, match="--draft-model x: it knows 97 tokens and the model 5000"):
        create("speculator", "draft", spec(5000, draft_model="x"))


def test_drafts_that_are_padding_to_the_model_end_a_proposal() -> None:
    request = replace(histories(1)[0], most=4)
    whole = create("speculator", "draft", spec(draft_model="x")).propose([request])[0]
    assert len(whole) > 1
    largest = max(whole)
    less = create("speculator", "draft", spec(largest, draft_model="x")).propose([request])[0]
    assert less == whole[: whole.index(largest)]


def test_the_entry_point_imports_no_torch() -> None:
    code = "import sys, llmkit_speculators.plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
