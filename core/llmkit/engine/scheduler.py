"""The scheduler ``continuous``: every step is a mix of decode and pieces of prompts.

Running requests go before waiting ones. Among the running, those with one token to compute (decode)
each get it; what is left of the step's token budget goes to prompts, half in the policy's order and
half to those with the least left, so that a long prompt neither holds up a short one nor starves.
When blocks run out, the policy's victim gives up all it holds and is computed again later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmkit.contracts.scheduler import SchedulerSpec
from llmkit.engine.kv_manager import KVManager
from llmkit.engine.prefix import request_root
from llmkit.engine.request import Request
from llmkit.errors import EngineError
from llmkit.messages import (
    AddRequest,
    EngineStats,
    NewRow,
    RowPlan,
    RowResult,
    StepOutput,
    StepPlan,
    StepResult,
)
from llmkit.types import FinishReason

CONTINUOUS = "continuous"
"""Its name for ``--scheduler``."""


class ContinuousScheduler:
    """Owns every request in the engine: the waiting, the running and the steps in flight."""

    def __init__(self, spec: SchedulerSpec, options: Any = None) -> None:
        self._policy = spec.policy
        self._budget = spec.scheduler.max_num_batched_tokens
        # Every running request gets at least a token a step, so nobody who runs can starve.
        self._seats = min(spec.scheduler.max_num_seqs, self._budget)
        self._max_model_len = spec.max_model_len
        self._root = spec.cache_root
        self.kv = KVManager(
            spec.layout, spec.block_size, self._budget, caching=spec.cache.enable_prefix_caching
        )
        self._requests: dict[str, Request] = {}
        self._waiting = _WaitingQueue()
        self._running: dict[str, Request] = {}
        self._gone: list[str] = []
        self._in_flight: dict[int, list[_Part]] = {}
        self._num_added = 0
        self._totals = _Totals()

    @property
    def has_work(self) -> bool:
        return bool(
            self._gone or self._waiting or any(request.remaining for request in self._running.values())
        )

    def add(self, request: AddRequest) -> None:
        """Queue a request.

        :raises ValueError: its id is already here, or it has no room for a prompt and one token.
        """
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        num_prompt = len(request.prompt_ids)
        if not 1 <= num_prompt < self._max_model_len:
            raise ValueError(
                f"the prompt has {num_prompt} tokens; 1 to {self._max_model_len - 1} leave room to answer"
            )
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; it must be at least 1")
        entry = Request(
            source=request,
            order=self._num_added,
            limit=min(num_prompt + request.max_tokens, self._max_model_len),
            root=request_root(self._root, request),
            tokens=list(request.prompt_ids),
        )
        self._num_added += 1
        self._requests[request.request_id] = entry
        self._wait(entry)

    def abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        found = [self._requests[name] for name in dict.fromkeys(request_ids) if name in self._requests]
        for request in found:
            self._end(request)
        return [
            StepOutput(request.request_id, finish=FinishReason.ABORT, cached_tokens=request.num_cached or 0)
            for request in found
        ]

    def schedule(self) -> StepPlan:
        self._totals.steps += 1
        before = self._totals.preemptions
        parts = [self._take(request, 1) for request in self._secure_decodes()]
        # Who was just preempted would come back at once, and take what was freed for others.
        copies = self._admit() if self._totals.preemptions == before else []
        parts += self._take_chunks(self._budget - len(parts), alone=not parts)
        parts.sort(key=lambda part: part.num_tokens > 1)
        new: list[NewRow] = []
        rows = [self._row(part, new) for part in parts]
        self.kv.end_plan()
        plan = StepPlan(self._totals.steps, rows, new, self._gone, copies)
        self._gone = []
        self._in_flight[plan.step] = parts
        return plan

    def update(self, result: StepResult) -> list[StepOutput]:
        parts = self._in_flight.pop(result.step, None)
        if parts is None:
            raise EngineError(f"the executor answered step {result.step}, which is not in flight")
        samples = {row.request_id: row for row in result.rows}
        outputs = (
            self._advance(part, samples.get(part.request.request_id))
            for part in parts
            if part.epoch == part.request.epoch
        )
        return [output for output in outputs if output is not None]

    def stats(self) -> EngineStats:
        totals = self._totals
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks_total=self.kv.pool.num_blocks - 1,
            blocks_held=self.kv.pool.num_held,
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            generated_tokens=totals.generated_tokens,
            preemptions=totals.preemptions,
            prefix_queries=totals.prefix_queries,
            prefix_hits=totals.prefix_hits,
        )

    def reset_prefix_cache(self) -> bool:
        return self.kv.pool.reset()

    def check(self) -> None:
        """:raises AssertionError: the books of requests and blocks disagree."""
        pool = self.kv.pool
        pool.check()
        held: dict[int, int] = {}
        for request in self._requests.values():
            for table in request.tables:
                for block in filter(None, table):
                    held[block] = held.get(block, 0) + 1
        refs = {block: pool.refs(block) for block in range(1, pool.num_blocks) if pool.refs(block)}
        assert held == refs, f"blocks in tables {held}, in the pool {refs}"
        assert len(self._waiting) + len(self._running) == len(self._requests), "a request got lost"

    # ---- planning ----

    def _secure_decodes(self) -> list[Request]:
        """Running requests with one token to compute, after preempting until each has its place."""
        while True:
            decodes = [request for request in self._running.values() if request.remaining == 1]
            needed = sum(self.kv.missing(request, len(request.tokens)) for request in decodes)
            if needed <= self.kv.pool.num_free:
                return decodes
            self._preempt()

    def _admit(self) -> list[tuple[int, int]]:
        """Start waiting requests, in the policy's order, as long as seats and blocks are left.

        A request starts only if the running ones and itself can compute all they know and one block
        more: starting one that must soon be preempted would compute it twice.
        """
        copies: list[tuple[int, int]] = []
        promised: int | None = None
        while len(self._running) < self._seats and (head := self._waiting.first()) is not None:
            running = list(self._running.values())
            if not self._policy.admit(head, running):
                break
            hit = self.kv.find_prefix(head)
            if running:
                if promised is None:
                    promised = sum(map(self.kv.outstanding, running))
                if promised + self.kv.needed_to_start(head, hit) > self.kv.pool.num_free:
                    break
            self._waiting.pop()
            copies += self.kv.start(head, hit)
            self._running[head.request_id] = head
            if promised is not None:
                promised += self.kv.outstanding(head)
            if head.num_cached is None:
                head.num_cached = hit.num_tokens
                self._totals.prefix_queries += head.num_prompt_tokens
                self._totals.prefix_hits += hit.num_tokens
        return copies

    def _take_chunks(self, budget: int, *, alone: bool) -> list[_Part]:
        """Pieces of prompts for this step, cut to the blocks at hand.

        ``alone``: nothing else is in the step, so if no piece finds a place somebody is preempted.
        """
        while True:
            prefills = [request for request in self._running.values() if request.remaining > 0]
            parts: list[_Part] = []
            for request, share in self._share(prefills, budget):
                count = self.kv.fitting(request, share)
                if count > 0:
                    parts.append(self._take(request, count))
            if parts or not prefills or not alone or any(self._in_flight.values()):
                return parts
            if len(self._running) == 1:
                raise EngineError("the KV pool cannot hold one request; this is a fault in its layout")
            self._preempt()

    def _share(self, prefills: list[Request], budget: int) -> list[tuple[Request, int]]:
        """Tokens for each prompt: half of the budget in the policy's order, the rest to the shortest."""
        in_order = sorted(prefills, key=lambda request: (request.sort_key, request.order))
        shares = dict.fromkeys((request.request_id for request in in_order), 0)

        def give(requests: Iterable[Request], amount: int) -> int:
            for request in requests:
                part = min(amount, request.remaining - shares[request.request_id])
                shares[request.request_id] += part
                amount -= part
            return amount

        left = give(in_order, budget - budget // 2)
        give(sorted(in_order, key=lambda request: request.remaining), left + budget // 2)
        return [(request, shares[request.request_id]) for request in in_order]

    def _take(self, request: Request, count: int) -> _Part:
        """Give its next ``count`` tokens a place in the step; somebody has asked whether they have one."""
        start = request.num_computed
        added = self.kv.grow(request, start + count)
        request.num_computed = start + count
        return _Part(request, request.epoch, start, count, int(request.remaining == 0), added)

    def _row(self, part: _Part, new: list[NewRow]) -> RowPlan:
        """Its row in the plan; who is unknown to the workers goes to ``new`` with all it has."""
        request = part.request
        told, request.num_told = request.num_told, len(request.tokens)
        if not told:
            new.append(_new_row(request))
        return RowPlan(
            request_id=request.request_id,
            start=part.start,
            num_tokens=part.num_tokens,
            num_logits=part.num_logits,
            token_ids=request.tokens[told:] if told else [],
            new_blocks=part.new_blocks if told else [[] for _ in part.new_blocks],
        )

    # ---- what becomes of requests ----

    def _advance(self, part: _Part, sample: RowResult | None) -> StepOutput | None:
        """Book one request's part of a finished step; refused draft tokens count as not computed."""
        request = part.request
        if sample is not None and sample.error is not None:
            return self._fail(request, sample.error)
        tokens = sample.token_ids if sample is not None and part.num_logits else []
        if bool(tokens) != bool(part.num_logits) or len(tokens) > part.num_logits:
            raise EngineError(
                f"the executor sampled {len(tokens)} tokens for request {request.request_id!r}; "
                f"planned were {min(part.num_logits, 1)} to {part.num_logits}"
            )
        refused = part.num_logits - len(tokens)
        request.num_computed -= refused
        request.num_done = part.start + part.num_tokens - refused
        end = min(part.start + part.num_tokens, request.num_prompt_tokens)
        self._totals.prompt_tokens += max(0, end - part.start)
        finish = None
        taken = 0
        for token in tokens:
            taken += 1
            finish = request.append(token)
            if finish is not None:
                break
        self._totals.generated_tokens += taken
        self.kv.publish(request)
        if not tokens or sample is None:
            return None
        if finish is not None:
            self._end(request)
        return StepOutput(
            request.request_id,
            token_ids=tokens[:taken],
            logprobs=sample.logprobs[:taken] if sample.logprobs is not None else None,
            finish=finish[0] if finish else None,
            stop_token=finish[1] if finish else None,
            cached_tokens=request.num_cached or 0,
        )

    def _fail(self, request: Request, error: str) -> StepOutput:
        """End it; what this step computed for it is not offered to the prefix cache."""
        self._end(request)
        return StepOutput(
            request.request_id,
            finish=FinishReason.ERROR,
            error=error,
            cached_tokens=request.num_cached or 0,
        )

    def _preempt(self) -> None:
        running = list(self._running.values())
        victim = self._running[self._policy.victim(running).request_id]
        self._totals.preemptions += 1
        self._leave(victim)
        self._wait(victim)

    def _wait(self, request: Request) -> None:
        request.sort_key = self._policy.key(request)
        self._waiting.push(request)

    def _end(self, request: Request) -> None:
        del self._requests[request.request_id]
        if request.request_id in self._running:
            self._leave(request)
        else:
            self._waiting.remove(request)
        self._policy.ended(request)

    def _leave(self, request: Request) -> None:
        """Stop running: give back blocks, make results in flight stale, tell the workers."""
        del self._running[request.request_id]
        self.kv.release(request)
        request.epoch += 1
        if request.num_told:
            request.num_told = 0
            self._gone.append(request.request_id)


@dataclass(slots=True)
class _Totals:
    """Counters since the engine started."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """One request's part of a step in flight."""

    request: Request
    epoch: int
    start: int
    num_tokens: int
    num_logits: int
    new_blocks: list[list[int]]


class _WaitingQueue:
    """Waiting requests in the policy's order; length does not matter to any operation but removal."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Request]] = []
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed)

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.sort_key, request.order, request))

    def first(self) -> Request | None:
        while self._heap and self._heap[0][1] in self._removed:
            self._removed.remove(heapq.heappop(self._heap)[1])
        return self._heap[0][2] if self._heap else None

    def pop(self) -> None:
        """Drop the first."""
        heapq.heappop(self._heap)

    def remove(self, request: Request) -> None:
        """It stays in the heap until it comes first or the removed are the most."""
        self._removed.add(request.order)
        if len(self._removed) > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1] not in self._removed]
            heapq.heapify(self._heap)
            self._removed.clear()


def _new_row(request: Request) -> NewRow:
    return NewRow(
        request_id=request.request_id,
        token_ids=list(request.tokens),
        num_prompt=request.num_prompt_tokens,
        params=request.source.params,
        seed=request.source.seed,
        choice=request.source.choice,
        end_ids=request.end_ids,
        block_tables=[list(table) for table in request.tables],
        plugin_data=request.source.plugin_data,
    )
