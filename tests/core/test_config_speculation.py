"""vLLM's ``--speculative-config`` means the settings it stands for, or says what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmkit.config import SpeculationConfig, sources
from llmkit.config.flags import needed
from llmkit.errors import UsageError


def load(**given: Any) -> SpeculationConfig:
    return sources.load(given, {}).config.speculation


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 3},
            SpeculationConfig("ngram", 5, None, 3, 4),
            id="ngram",
        ),
        pytest.param(
            {"model": "[ngram]", "prompt_lookup_max": 4}, SpeculationConfig("ngram", 4, None, 2, 4), id="old"
        ),
        pytest.param(
            {
                "model": "small",
                "num_speculative_tokens": 3,
                "draft_tensor_parallel_size": 1,
                "revision": None,
            },
            SpeculationConfig("draft", 3, "small"),
            id="a-model-drafts",
        ),
        pytest.param(
            {"method": "draft_model", "model": "small"},
            SpeculationConfig("draft", 4, "small"),
            id="draft-model",
        ),
    ],
)
def test_it_stands_for_settings(given: dict[str, Any], expected: SpeculationConfig) -> None:
    for value in (given, json.dumps(given)):
        found = load(speculative_config=value)
        assert [getattr(found, name) for name in FIELDS] == [getattr(expected, name) for name in FIELDS]


FIELDS = ("speculator", "num_speculative_tokens", "draft_model", "prompt_lookup_min", "prompt_lookup_max")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({}, "method is None; there are ngram and draft_model", id="empty"),
        pytest.param({"method": "eagle3", "model": "x"}, "method is 'eagle3'", id="a-method-not-here"),
        pytest.param({"method": ["ngram"]}, "method is ['ngram']", id="no-name"),
        pytest.param(
            {"method": "ngram", "prompt_lookup_mx": 3}, "did you mean 'prompt_lookup_max'?", id="typo"
        ),
        pytest.param({"model": "x", "draft_tensor_parallel_size": 2}, "runs on one rank", id="ranks"),
        pytest.param({"method": "ngram", "num_speculative_tokens": 0}, "out of range", id="none"),
        pytest.param({"method": "ngram", "num_speculative_tokens": "x"}, "not an integer", id="no-number"),
        pytest.param("[1]", "not a JSON object", id="no-object"),
    ],
)
def test_what_has_no_meaning_here_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(speculative_config=given)
    assert str(caught.value).startswith("--speculative-config: ")
    assert message in str(caught.value)


def test_a_setting_is_not_given_twice() -> None:
    with pytest.raises(UsageError, match="--speculative-config sets what --num-speculative-tokens sets too"):
        load(speculative_config={"method": "ngram", "num_speculative_tokens": 2}, num_speculative_tokens=3)


def test_a_server_that_speculates_needs_its_speculator_and_no_other_does() -> None:
    assert "speculator" not in needed(sources.load({}, {}).config)
    assert needed(sources.load({"speculator": "draft_model"}, {}).config)["speculator"] == "draft"
