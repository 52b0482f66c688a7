"""The scheduler ``continuous``: every step is a mix of decode and pieces of prompts.

Running requests go before waiting ones. Among the running, those with one token to compute (decode)
each get it; what is left of the step's token budget goes to prompts, half in the policy's order and
half to those with the least left, so that a long prompt neither holds up a short one nor starves.
When blocks run out, the policy's victim gives up all it holds and is computed again later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from llmkit.contracts.scheduler import Drafts, SchedulerSpec
from llmkit.engine.drafting import NO_DRAFTS, Drafting, waive
from llmkit.engine.kv_manager import KVManager, PrefixHit
from llmkit.engine.parts import Part, book, count_hit, end_with, plan_rows
from llmkit.engine.prefix import request_root
from llmkit.engine.request import Request
from llmkit.engine.waiting import Followers, WaitingQueue
from llmkit.errors import EngineError
from llmkit.messages import AddRequest, EngineStats, StepOutput, StepPlan, StepResult
from llmkit.types import FinishReason

CONTINUOUS = "continuous"
"""Its name for ``--scheduler``."""


class ContinuousScheduler:
    """Owns every request in the engine: the waiting, the running and the steps in flight."""

    def __init__(self, spec: SchedulerSpec, options: Any = None) -> None:
        self._policy = spec.policy
        self._drafting = Drafting(spec.drafter) if spec.drafter is not None else None
        self._accept = spec.accept
        self._budget = spec.scheduler.max_num_batched_tokens
        # Every running request gets at least a token a step, so nobody who runs can starve.
        self._seats = min(spec.scheduler.max_num_seqs, self._budget)
        self._max_model_len = spec.max_model_len
        self._root = spec.cache_root
        self.kv = KVManager(
            spec.layout,
            spec.block_size,
            self._budget,
            caching=spec.cache.enable_prefix_caching,
            directory=spec.directory,
        )
        self._overlapped = spec.scheduler.async_scheduling
        self._connected = spec.directory is not None
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue()
        self._followers = Followers()
        self._running: dict[str, Request] = {}
        self._gone: list[str] = []
        self._in_flight: dict[int, list[Part]] = {}
        self._num_added = 0
        self._totals = EngineStats()

    @property
    def has_work(self) -> bool:
        return bool(
            self._gone or self._waiting or any(request.remaining > 0 for request in self._running.values())
        )

    def add(self, request: AddRequest) -> None:
        """Queue a request.

        :raises ValueError: its id is already here, or it has no room for a prompt and one token.
        """
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        num_prompt = len(request.prompt_ids)
        most = self._max_model_len - min(request.max_tokens, 1)
        if not 1 <= num_prompt <= most:
            raise ValueError(f"the prompt has {num_prompt} tokens; 1 to {most} leave room to answer")
        prompt_only = request.pooling is not None or request.params.prompt_logprobs is not None
        if request.max_tokens < 0 or (not request.max_tokens and not prompt_only):
            raise ValueError(f"max_tokens is {request.max_tokens}; without prompt_logprobs it is at least 1")
        entry = Request(
            source=request,
            order=self._num_added,
            limit=min(num_prompt + request.max_tokens, self._max_model_len),
            root=request_root(self._root, request),
            tokens=list(request.prompt_ids),
            may_draft=self._drafting is not None and self._drafting.serves(request),
        )
        entry.whole |= request.pooling is not None and not self.kv.layout.groups
        if entry.whole and num_prompt > self._budget:
            raise ValueError(
                f"the prompt has {num_prompt} tokens; a step holds {self._budget}, and it needs one"
            )
        self._num_added += 1
        self._requests[request.request_id] = entry
        leader = self._requests.get(request.leader) if request.leader is not None else None
        if leader is not None and (leader.root, leader.source.prompt_ids) != (entry.root, request.prompt_ids):
            del self._requests[request.request_id]
            raise ValueError(f"leader {request.leader!r} has another prompt")
        if leader is not None and leader.num_done < num_prompt:
            self._followers.add(entry)
        else:
            self._wait(entry)

    def abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        found = [self._requests[name] for name in dict.fromkeys(request_ids) if name in self._requests]
        for request in found:
            self._end(request)
        return [end_with(request, FinishReason.ABORT) for request in found]

    def schedule(self) -> StepPlan:
        self._totals.steps += 1
        self._make_way()
        before = self._totals.preemptions
        parts = self._take_decodes()
        # Who was just preempted would come back at once, and take what was freed for others.
        copies = self._admit() if self._totals.preemptions == before else []
        parts += self._take_chunks(self._budget - sum(part.num_tokens for part in parts), alone=not parts)
        rows, new = plan_rows(parts)
        plan = StepPlan(self._totals.steps, rows, new, self._gone, copies, self.kv.end_plan())
        self._gone = []
        self._in_flight[plan.step] = parts
        return plan

    def update(self, result: StepResult) -> list[StepOutput]:
        parts = self._in_flight.pop(result.step, None)
        if parts is None:
            raise EngineError(f"the executor answered step {result.step}, which is not in flight")
        self._recompute(result.failed_loads)
        samples = {row.request_id: row for row in result.rows}
        outputs = []
        for part in parts:
            if part.epoch != part.request.epoch:
                continue  # it ended or was preempted meanwhile
            output = book(part, samples.get(part.request.request_id), self._totals, self._accept)
            if output is None or output.error is None:  # what failed is not offered to the prefix cache
                self.kv.publish(part.request)
            if output is not None:
                outputs.append(output)
                if output.finish is not None:
                    self._end(part.request)
            if self._followers and part.request.num_done >= part.request.num_prompt_tokens:
                self._release_followers(part.request)
        return outputs

    def stats(self) -> EngineStats:
        pool = self.kv.pool
        return replace(
            self._totals,
            running=len(self._running),
            waiting=len(self._waiting) + len(self._followers),
            blocks_total=pool.num_blocks - 1,
            blocks_held=pool.num_held,
            copied_blocks=self.kv.num_copied,
        )

    def reset_prefix_cache(self) -> bool:
        return self.kv.reset()

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
        places = len(self._waiting) + len(self._followers) + len(self._running)
        assert places == len(self._requests), "a request got lost"

    # ---- planning ----

    def _make_way(self) -> None:
        """Preempt for the first waiting request while it finds no place and the policy names who yields."""
        while self._running and (head := self._waiting.first()) is not None:
            running = list(self._running.values())
            victim = self._policy.yields(head, running)
            if victim is None:
                return
            if len(running) < self._seats and self._fits(head, self._find_hit(head), self._promised()):
                return
            self._preempt(self._running[victim.request_id])

    def _take_decodes(self) -> list[Part]:
        """The next token of each, and the drafts that find room without taking anybody's."""
        decodes, spare_blocks = self._secure_decodes()
        drafts: Mapping[Request, Drafts] = {}
        if self._drafting is not None:
            budget = self._budget - len(decodes)
            if self._waiting or len(decodes) < len(self._running):
                budget //= 2  # the rest is for prompts
            drafts = self._drafting.take(decodes, self.kv, budget, spare_blocks)
        return [self._take(request, 1, drafts.get(request, NO_DRAFTS)) for request in decodes]

    def _secure_decodes(self) -> tuple[list[Request], int]:
        """Running requests with one token to compute, after preempting until each has its place; and the
        blocks left then."""
        while True:
            running = self._running.values()
            decodes = [r for r in running if r.num_known - r.num_computed == 1 and not r.whole]
            if self._overlapped:
                # A step names what the one before it samples, and no later one.
                decodes = [request for request in decodes if request.num_awaited < 2]
            # Most have a place in the block they fill.
            growing = [request for request in decodes if request.num_known > request.num_slots]
            needed = sum(self.kv.missing(request, request.num_known) for request in growing)
            if needed <= self.kv.pool.num_free:
                return decodes, self.kv.pool.num_free - needed
            self._preempt_victim()

    def _admit(self) -> list[tuple[int, int]]:
        """Start waiting requests, in the policy's order, as long as seats and blocks are left.

        A request starts only if the running ones and itself can compute all they know and one block
        more: starting one that must soon be preempted would compute it twice.
        """
        copies: list[tuple[int, int]] = []
        promised: int | None = None
        while len(self._running) < self._seats and (head := self._waiting.first()) is not None:
            if not self._policy.admit(head, list(self._running.values())):
                break
            hit = self._find_hit(head)
            if promised is None:
                promised = self._promised()
            if not self._fits(head, hit, promised):
                break
            self._waiting.pop()
            copies += self.kv.start(head, hit)
            self._running[head.request_id] = head
            promised += self.kv.outstanding(head)
            if head.num_cached is None:
                head.num_cached = hit.num_tokens
                head.scheduled_s = time.monotonic()
                if not head.whole:
                    count_hit(self._totals, head.num_prompt_tokens, hit, connected=self._connected)
        return copies

    def _promised(self) -> int:
        """Blocks that the running may still take for what they know and one block more each."""
        return sum(map(self.kv.outstanding, self._running.values()))

    def _fits(self, request: Request, hit: PrefixHit, promised: int) -> bool:
        """Whether it can start beside the running; who is alone always can."""
        return not self._running or promised + self.kv.needed_to_start(request, hit) <= self.kv.pool.num_free

    def _find_hit(self, request: Request) -> PrefixHit:
        """What need not be computed; with prompt logprobs still due or all states needed, everything must
        be."""
        if request.wants_prompt_logprobs or request.whole:
            return PrefixHit(0, [[] for _ in self.kv.layout.groups], copy=False)
        leader = self._running.get(request.source.leader or "")
        if leader is not None and not request.num_output_tokens:
            hit = self.kv.fork(leader, request)
            if hit is not None:
                return hit
        return self.kv.find_prefix(request)

    def _take_chunks(self, budget: int, *, alone: bool) -> list[Part]:
        """Pieces of prompts for this step, cut to the blocks at hand.

        ``alone``: nothing else is in the step, so if no piece finds a place somebody is preempted.
        """
        while True:
            prefills = [
                request
                for request in self._running.values()
                if request.remaining > 0 and not request.num_awaited
            ]
            parts: list[Part] = []
            whole = any(request.whole for request in prefills)
            for request, share in _in_turn(prefills, budget) if whole else self._share(prefills, budget):
                count = self.kv.fitting(request, share)
                if count == share if request.whole else count > 0:
                    parts.append(self._take(request, count))
            if parts or not prefills or not alone or any(self._in_flight.values()):
                return parts
            if len(self._running) == 1:
                raise EngineError("the KV pool cannot hold one request; this is a fault in its layout")
            self._preempt_victim()

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

    def _take(self, request: Request, count: int, drafts: Drafts = NO_DRAFTS) -> Part:
        """Give its next ``count`` tokens and the drafts after them a place in the step; somebody has
        asked whether they have one."""
        start = request.num_computed
        end = start + count + len(drafts.tokens)
        added = self.kv.grow(request, end)
        request.num_computed = end
        num_logits = 0
        if start + count == request.num_known and request.max_tokens:
            num_logits = 1 + len(drafts.tokens)
            if self._overlapped and num_logits == 1:
                self._name_sample(request)
        return Part(
            request, request.epoch, start, end - start, num_logits, added, drafts.tokens, drafts.num_forced
        )

    def _name_sample(self, request: Request) -> None:
        """Let the next step go on from what this one samples, unless it ends there or drafts may come."""
        if request.may_draft and not waive(request):
            return
        if request.num_known + 1 < request.limit:
            request.num_known += 1

    # ---- what becomes of requests ----

    def _recompute(self, request_ids: Sequence[str]) -> None:
        """Start again those whose KV could not be loaded; what their steps in flight give is dropped."""
        for request_id in request_ids:
            if self.kv.load_failed(request_id):
                request = self._running[request_id]
                if not request.num_output_tokens:
                    request.num_cached = None
                self._leave(request)
                self._wait(request)

    def _preempt_victim(self) -> None:
        victim = self._policy.victim(list(self._running.values()))
        self._preempt(self._running[victim.request_id])

    def _preempt(self, request: Request) -> None:
        self._totals.preemptions += 1
        self._leave(request)
        self._wait(request)

    def _wait(self, request: Request) -> None:
        request.sort_key = self._policy.key(request)
        self._waiting.push(request)

    def _end(self, request: Request) -> None:
        del self._requests[request.request_id]
        if request in self._followers:
            self._followers.remove(request)
            return
        if request.request_id in self._running:
            self._leave(request)
        else:
            self._waiting.remove(request)
        self._policy.ended(request)
        self._release_followers(request)

    def _release_followers(self, leader: Request) -> None:
        for request in self._followers.release(leader):
            self._wait(request)

    def _leave(self, request: Request) -> None:
        """Stop running: give back blocks, make results in flight stale, tell the workers."""
        del self._running[request.request_id]
        self.kv.release(request)
        request.epoch += 1
        request.num_known = len(request.tokens)
        if request.num_told:
            request.num_told = 0
            self._gone.append(request.request_id)
        if request.may_draft and self._drafting is not None:
            self._drafting.forget(request)


def _in_turn(prefills: Sequence[Request], budget: int) -> list[tuple[Request, int]]:
    """Tokens for each prompt in the policy's order, where some can only be computed whole: the first one
    always is, and those behind fill what is left.
    """
    shares = []
    for request in sorted(prefills, key=lambda request: (request.sort_key, request.order)):
        share = min(budget, request.remaining)
        if share and (share == request.remaining or not request.whole):
            shares.append((request, share))
            budget -= share
    return shares
