"""An engine in this process, fed by what a front does with requests and outputs, step by step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from llmkit.assemble.engine import build_engine
from llmkit.assemble.grammars import grammar_compiler
from llmkit.assemble.model import open_frontend, open_model
from llmkit.config import Config, ModelConfig
from llmkit.contracts import AddRequest, Parsing, RequestContext
from llmkit.frontend.grammars import grammar_spec
from llmkit.frontend.parsing import Formats, thinking_of
from llmkit.frontend.requests import Attachments, Limits, bad_word_ids, make_requests
from llmkit.parsers.thinking import Tags
from llmkit.plugins import load_plugins
from llmkit.registry import Entry
from tests.differential import processor
from tests.differential.clients import Arrival, BeamClient, Client, Outcome
from tests.differential.model import VOCAB_SIZE
from tests.differential.watch import Watch

if TYPE_CHECKING:
    from tests.differential.asks import Ask

MOST_STEPS = 20_000
"""Beyond which an engine counts as stuck."""


class Opened:
    """A model's files and the front's part of it, shared by every engine over it."""

    def __init__(self, directory: Path) -> None:
        config = Config(model=ModelConfig(model=str(directory)))
        plugins = load_plugins(config.plugins)
        self.directory = directory
        self.model = open_model(config, plugins.registry, _no_progress)
        self.front = open_frontend(config, self.model, plugins.registry)
        formats = Formats(self.front.tokenizer, reasoning=Tags(thinks_first=True))
        self.reasoning = formats.answer(Parsing())
        """Of answers that are thinking from their first token on, with an end of several tokens."""
        self.grammars = grammar_compiler(
            config,
            plugins,
            lambda: grammar_spec(self.front.tokenizer, self.front.eos_ids, VOCAB_SIZE),
        )

    def close(self) -> None:
        self.grammars.close()


class Engine:
    """Owns an engine core and, in its place, plays the front. One thread."""

    def __init__(self, config: Config, opened: Opened) -> None:
        registry = load_plugins(config.plugins).registry
        self.watch = Watch("uniproc")
        registry.add([Entry("executor", "watch", self.watch.make, "test"), processor.entry()])
        watched = replace(config, parallel=replace(config.parallel, executor="watch"))
        with one_core():
            built = build_engine(watched, opened.model.files, opened.model.info, registry, _no_progress)
        self.core = built.core
        self.events: Counter[str] = Counter()
        self._opened = opened
        self._limits = Limits.of(built.ready, opened.front, seed=0)

    def close(self) -> None:
        self.core.shutdown(1.0)

    def alone(self, ask: Ask) -> Outcome:
        """Every choice by itself, with nobody before, beside or behind it."""
        choices = []
        for request in self._requests(Arrival(0, ask)):
            assert not self.core.has_work
            client = self._client(Arrival(0, ask), [msgspec.structs.replace(request, leader=None)])
            self._drive([client])
            choices += client.outcome().choices
        return Outcome(choices)

    def mix(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """All of them, as they come and go; an outcome each."""
        clients = [self._client(arrival, self._requests(arrival)) for arrival in arrivals]
        self._drive(clients)
        self._count(clients)
        return [client.outcome() for client in clients]

    # ---- requests ----

    def _requests(self, arrival: Arrival) -> list[AddRequest]:
        """What the front makes of them."""
        ask, front = arrival.ask, self._opened.front
        grammar = None
        if ask.params.structured is not None:
            grammar = self._opened.grammars.compile_now(ask.params.structured)
        words = bad_word_ids(front.tokenizer, ask.params.bad_words, self._limits.vocab_size)
        data = processor.data(ask.params.plugin_args)
        thinking = None
        if ask.params.thinking_token_budget is not None:
            thinking = thinking_of(self._opened.reasoning, ask.params)
        attachments = Attachments(plugin_data=data, bad_words=words, grammar=grammar, thinking=thinking)
        context = RequestContext(cache_salt=ask.cache_salt, priority=arrival.priority, caller=arrival.caller)
        return make_requests(ask.prompt, ask.params, context, self._limits, attachments)

    def _client(self, arrival: Arrival, requests: list[AddRequest]) -> Client:
        kind = Client if arrival.ask.params.beam_search is None else BeamClient
        return kind(arrival, requests, self._opened.front.tokenizer)

    # ---- steps ----

    def _drive(self, clients: Sequence[Client]) -> None:
        coming = sorted(clients, key=lambda client: client.arrival.step)
        owners: dict[str, Client] = {}
        step = 0

        def add(client: Client, requests: Sequence[AddRequest]) -> None:
            for request in requests:
                owners[request.request_id] = client
                assert self.core.add(request) == []

        while coming or self.core.has_work:
            assert step < MOST_STEPS, "the engine makes no progress"
            while coming and (coming[0].arrival.step <= step or not self.core.has_work):
                client = coming.pop(0)
                add(client, client.begin())
            loaded = self.core.stats.offload_hits
            outputs = self.core.step()
            self.events["offload hit"] += self.core.stats.offload_hits > loaded
            for output in outputs.outputs if outputs else ():
                client = owners[output.request_id]
                add(client, client.take(output, step))
            for client in clients:
                self.core.abort(client.aborts(step, self.watch))
            step += 1

    def _count(self, clients: Sequence[Client]) -> None:
        stats = self.core.stats
        self.events += self.watch.events
        self.events["preemption"] += stats.preemptions
        self.events["refused draft"] += stats.draft_tokens - stats.accepted_tokens
        self.events["accepted draft"] += stats.accepted_tokens
        self.events["forced token"] += stats.forced_tokens
        self.events["cache hit"] += sum(client.cached for client in clients)
        self.events["abort in prefill"] += sum(client.left_in_prefill for client in clients)
        self.events["stop string"] += sum(client.cut for client in clients)
        self.events["used up budget"] += sum(client.used_up for client in clients)
        self.events["left"] += sum(client.left for client in clients)
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0), "something is left"


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


def _no_progress(phase: str, fraction: float) -> None:
    """Nobody watches."""
