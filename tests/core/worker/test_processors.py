from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from llmkit.contracts import BatchChange, NewRow, ProcessorEnv, ProcessorRow, SamplingParams
from llmkit.registry import Entry
from llmkit.worker.logit_rows import LogitRows
from llmkit.worker.processors import Processors, make_processors
from llmkit.worker.sampler import Sampler, Samples
from llmkit.worker.sampling_state import SamplingState
from llmkit.worker.token_masks import read_masks
from tests.core.worker.toy import registry

VOCAB = 40
GREEDY = SamplingParams(temperature=0)
RANDOM = SamplingParams(temperature=1.0)


@dataclass
class Wants:
    """Makes the token of each request's arguments certain; notes what it was told."""

    argmax_invariant: bool = False
    changes: list[tuple[list[str], list[str]]] = field(default_factory=list)
    rows: list[tuple[str, int, list[int]]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)

    def update(self, change: BatchChange) -> None:
        self.changes.append((list(change.removed), [name for name, *_ in change.added]))
        for name in change.removed:
            del self.tokens[name]
        self.tokens |= {name: arguments["token"] for name, arguments, _ in change.added}

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        self.rows = [(row.request_id, row.row, row.tokens.tolist()) for row in rows]
        for row in rows:
            logits[row.row] = -9.0
            logits[row.row, self.tokens[row.request_id]] = 9.0


class Fails(Wants):
    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        super().apply(logits, rows)
        raise ZeroDivisionError("no delta")


@dataclass
class Batch:
    """A state whose rows come and go, and a sampler over it."""

    processors: Processors
    slots: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = SamplingState(8, VOCAB, self.processors)
        self.tokens = np.zeros((8, 16), np.int32)

    def enter(
        self, name: str, params: SamplingParams = GREEDY, prompt: Sequence[int] = (1, 2), **data: Any
    ) -> None:
        slot = self.slots[name] = min(set(range(8)) - set(self.slots.values()))
        packed = {plugin: msgspec.msgpack.encode(arguments) for plugin, arguments in data.items()}
        self.tokens[slot, : len(prompt)] = prompt
        self.state.put(slot, NewRow(name, list(prompt), len(prompt), params, 0, 0, (), [], packed))

    def leave(self, name: str) -> None:
        self.state.clear(self.slots.pop(name))

    def sample(self, *names: str, masks: Any = None) -> Samples:
        slots = np.array([self.slots[name] for name in names])
        where = LogitRows(slots, np.full(len(names), 2), None, self.tokens)
        logits = torch.zeros(len(names), VOCAB)
        logits[:, 3] = 1.0
        return Sampler(self.state).sample(logits, where, masks)


def test_a_processor_changes_the_rows_of_the_requests_that_ask_and_no_others() -> None:
    wants = Wants()
    batch = Batch(Processors({"wants": wants}))
    batch.enter("plain")
    batch.enter("asks", wants={"token": 7})
    batch.enter("other", somebody_else={"token": 9})
    assert batch.sample("plain", "asks", "other").tokens == [3, 7, 3]
    assert wants.rows == [("asks", 1, [1, 2])]


def test_a_processor_is_told_who_came_and_left_before_it_runs() -> None:
    wants = Wants()
    batch = Batch(Processors({"wants": wants}))
    batch.enter("a", wants={"token": 7})
    batch.enter("never ran", wants={"token": 8})
    batch.leave("never ran")
    batch.sample("a")
    batch.sample("a")
    batch.enter("b", wants={"token": 9})
    batch.leave("a")
    batch.enter("a", wants={"token": 10})  # preempted, and back before the processor ran again
    assert batch.sample("b", "a").tokens == [9, 10]
    batch.leave("a")
    batch.leave("b")
    batch.enter("c", wants={"token": 11})
    batch.sample("c")
    assert wants.changes == [([], ["a"]), (["a"], ["b", "a"]), (["a", "b"], ["c"])]


def test_tokens_before_a_row_hold_its_drafts_and_cannot_be_written() -> None:
    wants = Wants()
    batch = Batch(Processors({"wants": wants}))
    batch.enter("a", wants={"token": 7})
    batch.tokens[0, 2:4] = [20, 21]
    where = LogitRows(np.zeros(3, np.int64), np.arange(2, 5), np.arange(3), batch.tokens)
    Sampler(batch.state).sample(torch.zeros(3, VOCAB), where, None)
    assert [tokens for *_, tokens in wants.rows] == [[1, 2], [1, 2, 20], [1, 2, 20, 21]]
    with pytest.raises(ValueError, match="read-only"):
        where.before(0)[0] = 5


def test_greedy_requests_skip_a_processor_that_never_changes_the_likeliest() -> None:
    wants = Wants(argmax_invariant=True)
    batch = Batch(Processors({"wants": wants}))
    batch.enter("greedy", wants={"token": 7})
    batch.enter("random", RANDOM, wants={"token": 8})
    assert batch.sample("greedy", "random").tokens == [3, 8]
    assert wants.changes == [([], ["random"])]
    batch.leave("greedy")
    batch.sample("random")
    assert wants.changes == [([], ["random"])]


def test_a_processor_that_fails_ends_its_own_requests_with_its_name() -> None:
    batch = Batch(Processors({"fails": Fails(), "wants": Wants()}))
    batch.enter("good", wants={"token": 7})
    batch.enter("bad", fails={"token": 8})
    batch.enter("plain")
    samples = batch.sample("good", "bad", "plain")
    assert [samples.tokens[0], samples.tokens[2]] == [7, 3]
    assert samples.failed == {1: "logits processor 'fails' failed: ZeroDivisionError: no delta"}


class FailsToTake(Wants):
    """Without arguments it does nothing."""

    def update(self, change: BatchChange) -> None:
        super().update(change)
        if 13 in self.tokens.values():
            self.tokens = {name: token for name, token in self.tokens.items() if name == "old"}
            raise ValueError("thirteen")

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        super().apply(logits, [row for row in rows if row.request_id in self.tokens])


def test_nobody_goes_on_without_the_processor_it_asked_for() -> None:
    """Two come in one step, of which one is still in its prompt when the other's arguments fail."""
    batch = Batch(Processors({"fails": FailsToTake()}))
    batch.enter("old", fails={"token": 7})
    assert batch.sample("old").tokens == [7]
    batch.enter("bad", fails={"token": 13})
    batch.enter("later", fails={"token": 9})
    assert batch.sample("bad").failed == {0: "logits processor 'fails' failed: ValueError: thirteen"}
    batch.leave("bad")
    samples = batch.sample("old", "later")
    assert samples.tokens[0] == 7
    assert samples.failed == {1: "logits processor 'fails' failed to take this request's arguments"}
    batch.leave("later")
    batch.enter("later", fails={"token": 10})
    assert batch.sample("old", "later").tokens == [7, 10]


def test_what_is_forbidden_stays_so_whatever_a_processor_wants() -> None:
    batch = Batch(Processors({"wants": Wants()}))
    batch.enter("kept", SamplingParams(temperature=0, allowed_token_ids=(5, 6)), wants={"token": 7})
    batch.enter("masked", wants={"token": 7})
    mask = np.zeros((1, 2), np.uint32)
    mask[0, 0] = 1 << 30
    samples = batch.sample("kept", "masked", masks=read_masks(mask.tobytes(), [1], VOCAB))
    assert samples.tokens[0] in (5, 6)
    assert samples.tokens[1] == 30


def test_a_worker_makes_each_processor_once_for_its_vocabulary() -> None:
    made: list[ProcessorEnv] = []

    def make(env: ProcessorEnv, options: Any) -> Wants:
        made.append(env)
        return Wants()

    components = registry()
    components.add([Entry("processor", "wants", make, "other")])
    processors = make_processors(components, VOCAB, "cpu")
    assert made == [ProcessorEnv(VOCAB, "cpu")]
    assert processors.add(NewRow("a", [1], 1, GREEDY, 0, 0, (), [], {"wants": msgspec.msgpack.encode({})}))
