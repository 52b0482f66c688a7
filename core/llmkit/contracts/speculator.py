"""Speculators: tokens that may come next, proposed cheaply and verified by the model. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmkit.config import Config
from llmkit.types import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One running request that could take drafts in the next step. Since 0.1."""

    request_id: str
    token_ids: Sequence[int]
    """Prompt and all output so far; read only."""
    num_prompt: int
    most: int
    """Drafts that are of use at most: the context and ``max_tokens`` end there. 0: none. Besides, a
    speculator keeps to ``--num-speculative-tokens``."""
    params: SamplingParams
    seed: int
    choice: int
    scope: bytes = b""
    """Requests of different scopes share no cached KV, so that none can tell from its speed what another
    has asked: the root of its prefix-cache keys."""


class DraftEngine(Protocol):
    """Another model in this process, with a KV cache of its own. Since 0.1."""

    vocab_size: int

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Up to ``most`` tokens after each request's, sampled as the request samples."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SpeculatorSpec:
    """What a speculator is made for. Since 0.1."""

    config: Config
    vocab_size: int
    max_model_len: int
    open_draft: Callable[[str], DraftEngine]
    """Loads the model of this reference. :raises StartupError: it cannot be served here."""


class Speculator(Protocol):
    """Proposes; what it proposes changes how fast tokens come, never which. Since 0.1."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Up to ``most`` drafts for each request, in order; empty where there is nothing to propose."""

    def forget(self, request_ids: Sequence[str]) -> None:
        """These ended or were preempted."""

    def close(self) -> None:
        """Free what it holds; idempotent."""


class RegisterSpeculator(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[SpeculatorSpec, Any], Speculator],
        *,
        refuses: Callable[[SpeculatorSpec], str | None],
    ) -> None:
        """Chosen by name only: ``--speculator``."""
