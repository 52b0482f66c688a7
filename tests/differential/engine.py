"""An engine in this process, fed by what a front does with requests and outputs, step by step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch

from llmkit.assemble.engine import build_engine
from llmkit.assemble.model import OpenedModel, open_frontend, open_model
from llmkit.config import Config, ModelConfig
from llmkit.contracts import AddRequest, StepOutput
from llmkit.events import Content
from llmkit.fold import ChoiceFold, FoldedChoice
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.requests import Attachments, Limits, make_requests
from llmkit.frontend.services import FrontModel
from llmkit.plugins import load_plugins
from llmkit.registry import Entry, Registry
from tests.differential.watch import Watch

if TYPE_CHECKING:
    from tests.differential.asks import Ask

MOST_STEPS = 20_000
"""Beyond which an engine counts as stuck."""


@dataclass(frozen=True)
class Arrival:
    """When a request comes and when its client goes."""

    step: int
    ask: Ask
    leaves: int | Literal["prefill"] | None = None
    """After so many tokens, or while its prompt is half computed; None stays."""
    priority: int = 0
    caller: str = ""
    abort_lag: int = 0
    """Steps until the engine hears of a stop string or of a client that has gone."""


@dataclass(frozen=True)
class Outcome:
    """What a client got: of a request, its choices."""

    choices: list[FoldedChoice]
    left: bool = False
    """It went away before the end."""


@dataclass
class Opened:
    """A model's files and the front's part of it, shared by every engine over it."""

    model: OpenedModel
    front: FrontModel

    @staticmethod
    def of(directory: Path) -> Opened:
        config = Config(model=ModelConfig(model=str(directory)))
        registry = _registry(config)
        model = open_model(config, registry, _no_progress)
        return Opened(model, open_frontend(config, model, registry))


class Engine:
    """Owns an engine core and, in its place, plays the front. One thread."""

    def __init__(self, config: Config, opened: Opened) -> None:
        registry = _registry(config)
        self.watch = Watch("uniproc")
        registry.add([Entry("executor", "watch", self.watch.make, "test")])
        watched = replace(config, parallel=replace(config.parallel, executor="watch"))
        with one_core():
            built = build_engine(watched, opened.model.files, opened.model.info, registry, _no_progress)
        self.core = built.core
        self._limits = Limits.of(built.ready, opened.front, seed=0)
        self._tokenizer = opened.front.tokenizer
        self.events: Counter[str] = Counter()

    def close(self) -> None:
        self.core.shutdown(1.0)

    def requests(self, ask: Ask) -> list[AddRequest]:
        """What the front makes of it."""
        return make_requests(ask.prompt, ask.params, ask.context, self._limits, Attachments())

    def alone(self, ask: Ask) -> Outcome:
        """Every choice by itself, with nobody before, beside or behind it."""
        choices = []
        for request in self.requests(ask):
            assert not self.core.has_work
            client = _Client(
                Arrival(0, ask), [msgspec.structs.replace(request, leader=None)], self._tokenizer
            )
            self._drive([client])
            choices += client.outcome().choices
        return Outcome(choices)

    def mix(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """All of them, as they come and go; an outcome each."""
        clients = [_Client(arrival, self._sent(arrival), self._tokenizer) for arrival in arrivals]
        self._drive(clients)
        self._count(clients)
        return [client.outcome() for client in clients]

    def _sent(self, arrival: Arrival) -> list[AddRequest]:
        return [
            msgspec.structs.replace(request, priority=arrival.priority, caller=arrival.caller)
            for request in self.requests(arrival.ask)
        ]

    # ---- steps ----

    def _drive(self, clients: Sequence[_Client]) -> None:
        coming = sorted(clients, key=lambda client: client.arrival.step)
        by_id = {request.request_id: client for client in clients for request in client.requests}
        step = 0
        while coming or self.core.has_work:
            assert step < MOST_STEPS, "the engine makes no progress"
            while coming and (coming[0].arrival.step <= step or not self.core.has_work):
                for request in coming.pop(0).requests:
                    assert self.core.add(request) == []
            outputs = self.core.step()
            for output in outputs.outputs if outputs else ():
                by_id[output.request_id].take(output, step)
            for client in clients:
                self.core.abort(client.aborts(step, self.watch))
            step += 1

    def _count(self, clients: Sequence[_Client]) -> None:
        stats = self.core.stats
        self.events += self.watch.events
        self.events["preemption"] += stats.preemptions
        self.events["cache hit"] += sum(client.cached for client in clients)
        self.events["abort in prefill"] += sum(client.left_in_prefill for client in clients)
        self.events["stop string"] += sum(client.cut for client in clients)
        self.events["left"] += sum(client.left for client in clients)
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0), "something is left"


@dataclass
class _Client:
    """One request on the front's side."""

    arrival: Arrival
    requests: list[AddRequest]
    tokenizer: Any
    left: bool = False
    left_in_prefill: bool = False
    cached: int = 0
    """Choices that found some of their prompt in the cache."""
    cut: int = 0
    """Choices that a stop string ended."""
    _pipelines: dict[str, OutputPipeline] = field(default_factory=dict)
    _folds: dict[str, ChoiceFold] = field(default_factory=dict)
    _aborts: list[tuple[int, str]] = field(default_factory=list)
    """(step at which the engine hears of it, request id)"""

    def __post_init__(self) -> None:
        for request in self.requests:
            self._pipelines[request.request_id] = OutputPipeline(
                self.tokenizer, request.prompt_ids, self.arrival.ask.params
            )
            self._folds[request.request_id] = ChoiceFold()

    def take(self, output: StepOutput, step: int) -> None:
        pipeline = self._pipelines[output.request_id]
        if pipeline.finished or self.left:
            return
        for event in pipeline.feed(output):
            self._folds[output.request_id].add(event)
        if pipeline.finished:
            self.cached += pipeline.cached_tokens > 0
        if pipeline.abort_needed:
            self.cut += 1
            self._aborts.append((step + self.arrival.abort_lag, output.request_id))

    def aborts(self, step: int, watch: Watch) -> list[str]:
        """Requests that the engine hears of now that nobody wants them."""
        if not self.left and self._leaves(watch):
            self.left = True
            self._aborts += [(step + self.arrival.abort_lag, request.request_id) for request in self.requests]
        due = [name for when, name in self._aborts if when <= step]
        self._aborts = [abort for abort in self._aborts if abort[0] > step]
        return due

    def outcome(self) -> Outcome:
        choices = []
        for name, pipeline in self._pipelines.items():
            if not pipeline.finished:
                assert self.left, f"{name} got no end"
                for event in pipeline.fail("the client left"):
                    if not isinstance(event, Content):  # held back, and perhaps part of a stop string
                        self._folds[name].add(event)
            choices.append(self._folds[name].result())
        return Outcome(choices, self.left)

    def _leaves(self, watch: Watch) -> bool:
        if self.arrival.leaves is None:
            return False
        if self.arrival.leaves == "prefill":
            self.left_in_prefill = any(request.request_id in watch.in_prefill for request in self.requests)
            return self.left_in_prefill
        return self._pipelines[self.requests[0].request_id].num_tokens >= self.arrival.leaves


@contextmanager
def one_core() -> Iterator[None]:
    """Several threads only get in the way of steps of a millisecond."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
        torch.set_num_threads(1)
    finally:
        os.sched_setaffinity(0, cores)


def _registry(config: Config) -> Registry:
    return load_plugins(config.plugins).registry


def _no_progress(phase: str, fraction: float) -> None:
    """Nobody watches."""
