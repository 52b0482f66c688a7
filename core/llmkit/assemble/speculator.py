"""The speculator that was asked for, with a second model where it wants one."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.assemble.draft import Build, DraftedFor, open_draft
from llmkit.contracts.speculator import DraftEngine, Speculator, SpeculatorSpec
from llmkit.contracts.weights import Progress
from llmkit.engine.core import EngineCore
from llmkit.errors import UsageError
from llmkit.messages import Choice
from llmkit.registry import Registry


@dataclass(frozen=True, slots=True)
class Speculation:
    """Without ``--speculator`` there is none and nothing was chosen."""

    speculator: Speculator | None = None
    choices: tuple[Choice, ...] = ()
    notes: tuple[str, ...] = ()
    """What its models take, for the start-up summary."""
    engines: tuple[EngineCore, ...] = ()
    """Of its models."""


def make_speculator(
    target: DraftedFor, components: Registry, build: Build, progress: Progress
) -> Speculation:
    """``build`` makes the engine of a draft model.

    :raises UsageError: a setting of it is not honoured. :raises StartupError: it cannot serve this model.
    """
    wanted = target.config.speculation
    if wanted.speculator is None:
        if wanted.draft_model is not None:
            raise UsageError(f"--draft-model {wanted.draft_model}: nothing drafts; add --speculator draft")
        return Speculation()
    notes: list[str] = []
    engines: list[EngineCore] = []

    def open_named(reference: str) -> DraftEngine:
        engine = open_draft(reference, target, components, build, progress)
        notes.append(f"draft model {reference}: {engine.described}")
        engines.append(engine.core)
        return engine

    spec = SpeculatorSpec(target.config, target.vocab_size, target.max_model_len, open_named)
    choice = components.choose("speculator", wanted.speculator, spec)
    speculator = components.create("speculator", choice.name, spec)
    return Speculation(speculator, (choice,), tuple(notes), tuple(engines))
