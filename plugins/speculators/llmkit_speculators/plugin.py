"""Entry point of the speculators that ship with llmkit; imports no torch."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import RegisterSpeculator, Speculator, SpeculatorSpec


@hookimpl
def register_speculators(register: RegisterSpeculator) -> None:
    register("ngram", make_ngram, refuses=refuses_ngram)
    register("draft", make_draft, refuses=refuses_draft)


def make_ngram(spec: SpeculatorSpec, options: Any) -> Speculator:
    from llmkit_speculators.ngram import PromptLookup

    wanted = spec.config.speculation
    return PromptLookup(
        wanted.num_speculative_tokens, shortest=wanted.prompt_lookup_min, longest=wanted.prompt_lookup_max
    )


def refuses_ngram(spec: SpeculatorSpec) -> str | None:
    wanted = spec.config.speculation
    if wanted.draft_model is not None:
        return f"--draft-model is {wanted.draft_model!r}, and it uses no model"
    if wanted.prompt_lookup_min > wanted.prompt_lookup_max:
        return (
            f"--prompt-lookup-min is {wanted.prompt_lookup_min}; it must not be above --prompt-lookup-max, "
            f"which is {wanted.prompt_lookup_max}"
        )
    return None


def make_draft(spec: SpeculatorSpec, options: Any) -> Speculator:
    from llmkit_speculators.draft import open_drafter

    return open_drafter(spec)


def refuses_draft(spec: SpeculatorSpec) -> str | None:
    return None if spec.config.speculation.draft_model is not None else "it needs --draft-model"
