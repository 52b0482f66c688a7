"""Guessing tokens ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmkit.config.fields import option

MOST_DRAFTS = 64
"""Drafts a request and step at most; each needs a row of logits."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Who proposes draft tokens, and how many. The model verifies them: they never change a text."""

    speculator: str | None = option(
        None,
        "what proposes draft tokens, such as ngram or draft; default: nothing",
        kind="speculator",
        synonyms={"draft_model": "draft"},
    )
    num_speculative_tokens: int = option(
        4, "most draft tokens a request and step", minimum=1, maximum=MOST_DRAFTS
    )
    draft_model: str | None = option(None, "the model of --speculator draft, written as MODEL is")
    prompt_lookup_min: int = option(
        2, "--speculator ngram: fewest tokens that must have come before", minimum=1, maximum=MOST_DRAFTS
    )
    prompt_lookup_max: int = option(
        8, "--speculator ngram: longest match that is looked for, tokens", minimum=1, maximum=MOST_DRAFTS
    )
    speculative_config: dict[str, Any] | None = option(
        None, "vLLM's JSON for the settings above", aliases=("-sc",)
    )
