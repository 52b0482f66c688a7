"""The speculator that was asked for is made, or what is wrong with the settings is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmkit.config import SpeculationConfig
from llmkit.engine.client_inproc import InprocClient
from llmkit.errors import LlmkitError, ModelNotFound, StartupError, UnknownName, UsageError

from ..engine.harness import make_request
from .test_build_engine import CONFIG, build


def speculating(**settings: Any) -> Any:
    return build(replace(CONFIG, speculation=SpeculationConfig(**settings)))


def test_without_a_speculator_there_is_none() -> None:
    built = build()
    assert not [choice for choice in built.ready.choices if choice.kind == "speculator"]


def test_the_summary_says_which_and_drafts_are_counted() -> None:
    built = speculating(speculator="ngram", prompt_lookup_min=1)
    assert [(c.name, c.why) for c in built.ready.choices if c.kind == "speculator"] == [("ngram", "by name")]
    client = InprocClient(built.core, built.ready)
    client.add(make_request("a", b"abcabcabcabc", 12))
    assert bytes(token for output in client.outputs() for token in output.token_ids) == b"abcabcabcabc"
    assert client.stats.accepted_tokens == client.stats.draft_tokens > 0
    client.close()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        pytest.param({"speculator": "ngrm"}, UnknownName, "did you mean 'ngram'", id="unknown"),
        pytest.param({"speculator": "auto"}, StartupError, "only when asked for by name", id="auto"),
        pytest.param({"speculator": "draft"}, StartupError, "it needs --draft-model", id="no-draft-model"),
        pytest.param(
            {"speculator": "draft", "draft_model": "nowhere:x"},
            ModelNotFound,
            "--draft-model nowhere:x",
            id="nowhere",
        ),
        pytest.param({"draft_model": "x"}, UsageError, "add --speculator draft", id="nobody-drafts"),
        pytest.param(
            {"speculator": "ngram", "draft_model": "x"}, StartupError, "it uses no model", id="ngram-model"
        ),
        pytest.param(
            {"speculator": "ngram", "prompt_lookup_min": 9}, StartupError, "not be above", id="empty-range"
        ),
    ],
)
def test_refusals(settings: dict[str, Any], error: type[LlmkitError], message: str) -> None:
    with pytest.raises(error, match=message):
        speculating(**settings)
