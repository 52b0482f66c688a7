"""A tiny deterministic model of integers whose every token depends on all the KV it should see.

It runs without torch, in microseconds a token, and reads and writes KV only through the block tables
and copies of the plans it gets. A wrong table, a lost copy, a block written by two requests or a stale
prefix changes its tokens; :func:`generate` and :func:`prompt_logprobs` give the right ones without any cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmkit.contracts import (
    PLACEHOLDER,
    KVCacheSpec,
    KVLayout,
    KVMover,
    NewRow,
    PositionLogprobs,
    Progress,
    RowPlan,
    RowResult,
    SamplePlan,
    StepPlan,
    StepResult,
    TokenLogprob,
    WorkerReport,
)
from llmkit.errors import EngineError

Words = np.ndarray[Any, np.dtype[np.uint64]]

_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class KVModelSpec:
    """Its layers, each full (None) or with a window."""

    windows: tuple[int | None, ...] = (None, 6, None, 6)
    block_size: int = 4
    vocab_size: int = 97

    @property
    def layers(self) -> tuple[KVCacheSpec, ...]:
        return tuple(
            KVCacheSpec("full" if window is None else "sliding", self.block_size, 8, "words", window)
            for window in self.windows
        )


def generate(
    spec: KVModelSpec,
    prompt: Sequence[int],
    count: int,
    ends: Sequence[int] = (),
    allowed: Callable[[Sequence[int]], set[int] | None] = lambda output: None,
) -> list[int]:
    """The tokens that follow ``prompt``, as many as ``count`` or up to one of ``ends``.

    ``allowed`` says of the output so far which tokens may come next; None: all.
    """
    memory = [np.zeros(len(prompt) + count, np.uint64) for _ in spec.windows]
    tokens = list(prompt)
    position, hidden = 0, 0
    while len(tokens) < len(prompt) + count:
        while position < len(tokens):
            hidden = _token(spec, tokens[position], position, memory)
            position += 1
        tokens.append(_choose(spec, hidden, allowed(tokens[len(prompt) :])))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


def prompt_logprobs(spec: KVModelSpec, prompt: Sequence[int]) -> list[PositionLogprobs]:
    """Those of the prompt's tokens from the second one on."""
    memory = [np.zeros(len(prompt), np.uint64) for _ in spec.windows]
    hidden = [_token(spec, token, position, memory) for position, token in enumerate(prompt)]
    return [_logprobs(before, token) for before, token in zip(hidden, prompt[1:], strict=False)]


class KVModelExecutor:
    """An executor over the model; :class:`EngineError` where a plan contradicts the contract."""

    max_concurrent_batches = 1

    def __init__(self, spec: KVModelSpec | None = None, *, num_blocks: int = 64) -> None:
        self.spec = spec or KVModelSpec()
        self.num_blocks = num_blocks
        self.copies = 0
        """Blocks copied so far."""
        self._rows: dict[str, _Row] = {}
        self._layout = KVLayout((), 1, 0, 0)
        self.slots: list[Words] = []
        """``[num_blocks, block_size]`` each: one word a token."""
        self.mover: KVMover | None = None
        """A KV connector's side, where a test gives one; over the bytes of ``slots``."""
        self._failed: dict[int, list[str]] = {}
        self._place: dict[int, tuple[int, int]] = {}

    def start(self, progress: Progress) -> WorkerReport:
        progress("loading", 1.0)
        return WorkerReport(
            choices=(),
            layers=self.spec.layers,
            kv_bytes=self.num_blocks * 8 * len(self.spec.windows),
            kv_why="as the test says",
            weight_bytes=0,
            vocab_size=self.spec.vocab_size,
            row_invariant=True,
        )

    def allocate(self, layout: KVLayout, progress: Progress) -> None:
        self._layout = layout
        shape = (layout.num_blocks, self.spec.block_size)
        self.slots = [np.zeros(shape, np.uint64) for _ in range(layout.num_slots)]
        self._place = {
            layer: (group, slot)
            for group, entry in enumerate(layout.groups)
            for slot, layer in enumerate(entry.layers)
        }

    def execute(self, plan: StepPlan) -> list[_Computed]:
        """What each row's logits and prompt logprobs follow from."""
        for name in plan.gone:
            self._rows.pop(name, None)
        if plan.transfers:
            if self.mover is None:
                raise EngineError("the plan has transfers, and there is no connector")
            self._failed[plan.step] = list(self.mover.apply(plan.transfers))
        self._copy(plan.copies)
        for new in plan.new:
            if new.request_id in self._rows:
                raise EngineError(f"{new.request_id!r} is new but was never gone")
            self._rows[new.request_id] = _Row(
                list(new.token_ids), [list(t) for t in new.block_tables], new, new.prompt_logprobs_from
            )
        lengths = [row.num_tokens for row in plan.rows]
        if lengths != sorted(lengths):
            raise EngineError("the shortest rows do not come first")
        self._take(plan.rows)
        return [self._forward(row) for row in plan.rows]

    def sample(self, handle: list[_Computed], plan: SamplePlan) -> Future[StepResult]:
        """The hidden state says which token; drafts are accepted while they equal it."""
        masks = _masks(plan)
        rows = []
        index = 0
        for row in handle:
            tokens: list[int] = []
            for at, (hidden, draft) in enumerate(zip(row.hidden, [*row.drafts, None], strict=False), index):
                tokens.append(_choose(self.spec, hidden, masks.get(at)))
                if tokens[-1] != draft:
                    break
            index += len(row.hidden)
            if tokens:
                row.state.last = tokens[-1]
            if tokens or row.prompt_logprobs is not None:
                rows.append(RowResult(row.request_id, tokens, prompt_logprobs=row.prompt_logprobs))
        future: Future[StepResult] = Future()
        future.set_result(StepResult(plan.step, rows, self._failed.pop(plan.step, [])))
        return future

    def call(self, method: str, *args: Any) -> list[Any]:
        raise EngineError(f"this executor has no method {method!r}")

    def check_health(self) -> None:
        """It is always well."""

    def shutdown(self, timeout_s: float) -> None:
        self._rows.clear()

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        destinations = {destination for _, destination in copies}
        if len(destinations) < len(copies) or not destinations.isdisjoint(s for s, _ in copies):
            raise EngineError(f"what these copies give depends on their order: {copies}")
        self.copies += len(copies)
        for slot in self.slots:
            for source, destination in copies:
                slot[destination] = slot[source]

    def _take(self, rows: Sequence[RowPlan]) -> None:
        written: set[tuple[int, int]] = set()
        for row in rows:
            state = self._rows[row.request_id]
            if PLACEHOLDER in row.token_ids and state.last == PLACEHOLDER:
                raise EngineError(f"{row.request_id!r}: a placeholder, but nothing was sampled")
            state.tokens += [state.last if token == PLACEHOLDER else token for token in row.token_ids]
            for table, blocks in zip(state.tables, row.new_blocks, strict=True):
                table += blocks
            end = row.start + row.num_tokens
            if not 0 < end <= len(state.tokens) + len(row.drafts):
                raise EngineError(f"{row.request_id!r}: the worker does not know all tokens to compute")
            if row.drafts and (end, row.num_logits) != (
                len(state.tokens) + len(row.drafts),
                1 + len(row.drafts),
            ):
                raise EngineError(f"{row.request_id!r}: drafts do not follow its own last token")
            for table in state.tables:
                for position in range(row.start, row.start + row.num_tokens):
                    place = (table[position // self.spec.block_size], position % self.spec.block_size)
                    if place[0] == 0 or place in written:
                        raise EngineError(f"{row.request_id!r} writes to {place}: the null block, or twice")
                    written.add(place)

    def _forward(self, row: RowPlan) -> _Computed:
        state = self._rows[row.request_id]
        memory = [self._gather(state, layer, row.start) for layer in range(len(self.spec.windows))]
        tokens = state.tokens + row.drafts
        positions = range(row.start, row.start + row.num_tokens)
        hidden = [_token(self.spec, tokens[position], position, memory) for position in positions]
        for layer, words in enumerate(memory):
            self._scatter(state, layer, words, row)
        wanted = None
        if state.new.params.prompt_logprobs is not None:
            following = range(max(row.start + 1, state.logprobs_from), state.new.num_prompt)
            wanted = [
                _logprobs(hidden[p - 1 - row.start], tokens[p]) for p in following if p - 1 in positions
            ]
        sampled = hidden[len(hidden) - row.num_logits :]
        return _Computed(row.request_id, state, sampled, row.drafts, wanted or None)

    def _gather(self, state: _Row, layer: int, start: int) -> Words:
        """The layer's KV of tokens before ``start``, with room for the row's tokens."""
        group, slot = self._place[layer]
        words = self.slots[slot][state.tables[group]].reshape(-1)
        assert len(words) >= start
        return words

    def _scatter(self, state: _Row, layer: int, words: Words, row: RowPlan) -> None:
        group, slot = self._place[layer]
        size = self.spec.block_size
        for position in range(row.start, row.start + row.num_tokens):
            self.slots[slot][state.tables[group][position // size], position % size] = words[position]


@dataclass(slots=True)
class _Row:
    tokens: list[int]
    tables: list[list[int]]
    new: NewRow
    logprobs_from: int
    last: int = PLACEHOLDER
    """What it sampled last, once it has."""


@dataclass(frozen=True, slots=True)
class _Computed:
    """A row whose forward has run."""

    request_id: str
    state: _Row
    hidden: list[int]
    """One for each row of logits."""
    drafts: list[int]
    prompt_logprobs: list[PositionLogprobs] | None


def _choose(spec: KVModelSpec, hidden: int, allowed: set[int] | None) -> int:
    """The first token from the hidden state on that is allowed, round the vocabulary."""
    first = hidden % spec.vocab_size
    if allowed is None:
        return first
    return min(allowed, key=lambda token: (token - first) % spec.vocab_size)


def _masks(plan: SamplePlan) -> dict[int, set[int]]:
    """Logits row -> tokens that its mask allows."""
    if plan.masks is None:
        return {}
    bits = np.unpackbits(np.frombuffer(plan.masks, np.uint8), bitorder="little")
    rows = bits.reshape(len(plan.mask_rows), -1)
    return {at: set(np.flatnonzero(row).tolist()) for at, row in zip(plan.mask_rows, rows, strict=True)}


def _logprobs(hidden: int, token: int) -> PositionLogprobs:
    """Made up, of the state before the token and the token."""
    return PositionLogprobs(TokenLogprob(token, -float(_mix(hidden, token) % 1000) / 100))


def _token(spec: KVModelSpec, token: int, position: int, memory: Sequence[Words]) -> int:
    """Write one token's KV in every layer, attend, and give its hidden state."""
    hidden = _mix(token + 1, position)
    for layer, window in enumerate(spec.windows):
        words = memory[layer]
        words[position] = _mix(hidden, layer)
        first = 0 if window is None else max(0, position - window + 1)
        seen = words[first : position + 1]
        weights = np.arange(1, len(seen) + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        hidden = _mix(hidden, int((seen * weights).sum(dtype=np.uint64)))
    return hidden


def _mix(first: int, second: int) -> int:
    value = (first * _MULTIPLIER + second) & _MASK
    value ^= value >> 29
    value = (value * _MULTIPLIER + 1) & _MASK
    return value ^ (value >> 32)
