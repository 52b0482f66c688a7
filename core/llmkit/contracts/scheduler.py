"""Schedulers and the policies of the built-in one. No torch, no clocks, deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts.connector import KVDirectory
from llmkit.contracts.speculator import DraftRequest
from llmkit.kv import KVLayout
from llmkit.messages import AddRequest, EngineStats, StepOutput, StepPlan, StepResult


class RequestView(Protocol):
    """What a policy may see of a request. Read only. Since 0.1."""

    @property
    def request_id(self) -> str: ...
    @property
    def priority(self) -> int:
        """Lower goes first."""

    @property
    def arrival_s(self) -> float: ...
    @property
    def order(self) -> int:
        """Place in the order of arrival; unique."""

    @property
    def caller(self) -> str:
        """Who asks; empty for nobody in particular."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int:
        """Most tokens it may generate."""

    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int:
        """0 while it waits."""


class SchedulingPolicy(Protocol):
    """Who goes first, who may enter, who is preempted. Since 0.1.

    It hears of a request first by :meth:`key` and last by :meth:`ended`. A policy that
    derives from this class need not write :meth:`yields` and :meth:`ended`.
    """

    def key(self, request: RequestView) -> Any:
        """Sort key among waiting requests, smallest first; asked once whenever it starts to wait."""

    def admit(self, request: RequestView, running: Sequence[RequestView]) -> bool:
        """Whether the first waiting request may start now; False leaves it at the front."""

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        """Whom to preempt when blocks run out; ``running`` is never empty."""

    def yields(self, request: RequestView, running: Sequence[RequestView]) -> RequestView | None:
        """Who of the running makes way for the first waiting request when it finds no place; None: nobody."""
        return None

    def ended(self, request: RequestView) -> None:
        """Told once, as the last of a request that was given a key, however it ended."""
        return


class Drafts(NamedTuple):
    """Tokens that may come next of one request. Since 0.1."""

    tokens: list[int]
    num_forced: int
    """The first so many are all that a grammar allows; the rest are guesses."""


class Drafter(Protocol):
    """Where a scheduler gets drafts: a speculator, grammars or both. Since 0.1."""

    def serves(self, request: AddRequest) -> bool:
        """Whether there could ever be drafts for this request."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Drafts]:
        """Up to ``most`` for each, in order. Asked once a step at most."""

    def forget(self, request_ids: Sequence[str]) -> None:
        """These ended or were preempted."""


class Accept(Protocol):
    """Tells of tokens that a request with a grammar or a thinking budget got. Since 0.1."""

    def __call__(self, request_id: str, tokens: Sequence[int]) -> int | None:
        """The index of the token after which nothing may follow, if there is one: the request ends there.

        :raises ValueError: a token that is not allowed; the request must end with these words.
        """


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """What a scheduler is made for. Since 0.1."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    layout: KVLayout
    block_size: int
    max_model_len: int
    cache_root: bytes
    """Root of all prefix-cache keys: deployment salt, model identity, KV encoding."""
    policy: SchedulingPolicy
    drafter: Drafter | None = None
    """None: no request ever takes drafts."""
    accept: Accept | None = None
    """Called with all that requests with a grammar or ``thinking`` get; None: none comes with either."""
    directory: KVDirectory | None = None
    """Of the KV connector; None without one."""


class Scheduler(Protocol):
    """Owns every request in the engine and, through its block pool, every block. Since 0.1."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`schedule` would plan anything or has something to tell the workers."""

    def add(self, request: AddRequest) -> None:
        """Queue a request. :raises ValueError: its id is already here."""

    def abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        """End requests now; unknown ids are ignored. Gives their last outputs."""

    def schedule(self) -> StepPlan:
        """Plan the next step; with nothing to run its ``rows`` are empty."""

    def update(self, result: StepResult) -> list[StepOutput]:
        """Take a step's samples. Results of requests that ended meanwhile are dropped."""

    def stats(self) -> EngineStats: ...

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block that no request holds; True if none was held."""


class RegisterPolicy(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, factory: Callable[[SchedulerConfig, Any], SchedulingPolicy]) -> None:
        """``factory(config, options)``"""


class RegisterScheduler(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, factory: Callable[[SchedulerSpec, Any], Scheduler]) -> None:
        """``factory(spec, options)``"""
