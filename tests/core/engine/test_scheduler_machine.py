"""A state machine over scheduler and block pool: two groups, one sliding; anything in any order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llmkit.contracts import (
    PLACEHOLDER,
    AddRequest,
    DraftRequest,
    Drafts,
    KVCacheSpec,
    RequestView,
    RowPlan,
    RowResult,
    SamplingParams,
    StepPlan,
    StepResult,
)
from llmkit.engine.kv_manager import PrefixHit
from llmkit.engine.layout import blocks_for
from llmkit.engine.request import Request
from llmkit.engine.scheduler import ContinuousScheduler

from .harness import ByOrder, make_request, make_scheduler

BLOCK, WINDOW, CONTEXT = 4, 7, 48
LAYERS = (KVCacheSpec("full", BLOCK, 8, "x"), KVCacheSpec("sliding", BLOCK, 8, "x", window=WINDOW))
STOP = 1


class ToldVictim(ByOrder):
    """Preempts whom the machine says, so that every order of preemption is tried."""

    pick = 0

    def victim(self, running: Any) -> RequestView:
        return running[self.pick % len(running)]

    def key(self, request: RequestView) -> Any:
        """Every fifth request is worth more than the others."""
        return int(request.request_id) % 5 > 0, request.order

    def yields(self, request: RequestView, running: Any) -> RequestView | None:
        lesser = [other for other in running if int(other.request_id) % 5]
        return lesser[-1] if lesser and int(request.request_id) % 5 == 0 else None


class ToldDrafter:
    """Proposes what the machine says; those that end are forgotten once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.length = 0

    def serves(self, request: AddRequest) -> bool:
        return int(request.request_id) % 3 > 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Drafts]:
        assert all(request.most > 0 for request in requests)
        return [Drafts(self.tokens[: self.length * (n % 2 + 1)], n % 2) for n in range(len(requests))]

    def forget(self, request_ids: Sequence[str]) -> None: ...


class SchedulerMachine(RuleBasedStateMachine):
    scheduler: ContinuousScheduler

    @initialize(
        spare=st.integers(0, 6),
        budget=st.integers(1, 12),
        seats=st.integers(2, 5),
        caching=st.booleans(),
        overlapped=st.booleans(),
    )
    def start(self, spare: int, budget: int, seats: int, caching: bool, overlapped: bool) -> None:
        self.policy = ToldVictim()
        self.drafter = ToldDrafter()
        self.budget, self.seats, self.caching = budget, seats, caching
        least = sum(blocks_for(spec, CONTEXT, budget) for spec in LAYERS)
        self.scheduler = make_scheduler(
            LAYERS,
            num_blocks=1 + least + spare,
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            max_model_len=CONTEXT,
            caching=caching,
            policy=self.policy,
            drafter=self.drafter,
            overlapped=overlapped,
        )
        self.count = 0
        self.open: set[str] = set()
        self.ended: set[str] = set()
        self.plans: list[StepPlan] = []
        self.known: dict[str, list[int]] = {}
        """What the workers know: request -> its tokens."""
        self.dropped: set[tuple[int, str]] = set()
        """(step, request) whose result is for nobody: the request was preempted with the step in flight."""
        self.ledger: dict[int, tuple[bytes, tuple[str | None, int, tuple[int, ...]]]] = {}
        """Block -> its key and what it holds."""
        kv, start = self.scheduler.kv, self.scheduler.kv.start

        def checked_start(request: Request, hit: PrefixHit) -> list[tuple[int, int]]:
            self.check_start(request, hit)
            return start(request, hit)

        kv.start = checked_start  # type: ignore[method-assign]

    @rule(
        head=st.integers(0, 24),
        tail=st.lists(st.integers(2, 3), min_size=1, max_size=5),
        max_tokens=st.integers(4, 23),
        salt=st.sampled_from([None, None, None, "a"]),
        copies=st.integers(1, 3),
        follow=st.booleans(),
    )
    def add(
        self, head: int, tail: list[int], max_tokens: int, salt: str | None, copies: int, follow: bool
    ) -> None:
        """Prompts begin alike for a while, and some are equal, as choices of one request or by chance."""
        prompt = [2 + index % 3 % 2 for index in range(head)] + tail
        params = SamplingParams(stop_token_ids=(STOP,))
        leader: str | None = None
        for _ in range(copies):
            self.count += 1
            name = str(self.count)
            request = make_request(name, prompt, max_tokens, params=params, cache_salt=salt, leader=leader)
            self.scheduler.add(request)
            self.open.add(name)
            leader = (leader or name) if follow else None

    @rule(picks=st.lists(st.integers(0, 100), min_size=1, max_size=3))
    def abort(self, picks: list[int]) -> None:
        names = [sorted(self.open)[pick % len(self.open)] for pick in picks if self.open]
        event(f"abort {'some' if names else 'none'}")
        self.take(self.scheduler.abort([*names, "unknown"]))
        assert not self.open & set(names)

    @rule(
        count=st.integers(2, 16),
        ahead=st.integers(1, 3),
        victim=st.integers(0, 5),
        tokens=st.lists(st.sampled_from([2, 3, 2, 3, 2, 3, 2, 3, STOP]), min_size=1, max_size=5),
        drafts=st.integers(0, 4),
    )
    def advance(self, count: int, ahead: int, victim: int, tokens: list[int], drafts: int) -> None:
        """So many steps, with up to ``ahead`` in flight; some of them stay there."""
        self.policy.pick = victim
        self.drafter.tokens, self.drafter.length = tokens, drafts
        for number in range(count):
            if self.scheduler.has_work and len(self.plans) < ahead:
                self.plan()
            if self.plans and (len(self.plans) >= ahead or not self.scheduler.has_work):
                self.finish(tokens[number % len(tokens) :] + tokens)

    def plan(self) -> None:
        before = self.scheduler.stats().preemptions
        if len(self.scheduler._followers):
            event("follows a leader")
        plan = self.scheduler.schedule()
        self.check_plan(plan)
        self.plans.append(plan)
        if self.scheduler.stats().preemptions > before:
            event("preempted for blocks")
        if plan.copies:
            event("copied on write")

    def finish(self, tokens: list[int]) -> None:
        plan = self.plans.pop(0)
        sampled = [row for row in plan.rows if row.num_logits]
        rows = [
            RowResult(row.request_id, self.sample(row, tokens[i:] + tokens)) for i, row in enumerate(sampled)
        ]
        running = self.scheduler._running.values()
        tables = {request: [list(table) for table in request.tables] for request in running}
        self.take(self.scheduler.update(StepResult(plan.step, rows)))
        self.remember(tables)
        for name, known in self.known.items():
            if name in self.open:
                tokens = self.scheduler._requests[name].tokens[: len(known)]
                known[: len(tokens)] = tokens

    @staticmethod
    def sample(row: RowPlan, tokens: list[int]) -> list[int]:
        """As many of ``tokens`` as there are accepted drafts, and one."""
        wanted = [tokens[i % len(tokens)] for i in range(1 + len(row.drafts))]
        accepted = 0
        while accepted < len(row.drafts) and wanted[accepted] == row.drafts[accepted]:
            accepted += 1
        if row.drafts:
            event("all drafts accepted" if accepted == len(row.drafts) else "drafts refused")
        return wanted[: accepted + 1]

    @rule(victim=st.integers(0, 5))
    def preempt(self, victim: int) -> None:
        self.policy.pick = victim
        if self.scheduler._running:
            event("preempted at will")
            self.scheduler._preempt_victim()

    @rule()
    def reset(self) -> None:
        held = self.scheduler.stats().blocks_held
        assert self.scheduler.reset_prefix_cache() == (held == 0)
        assert self.scheduler.kv.pool.num_cached == 0

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.kv.pool
        self.scheduler.check()
        empty = sum(pool._keys[block] is None for block in pool._free)
        assert empty + pool.num_cached + pool.num_held == pool.num_blocks - 1
        for request in self.scheduler._running.values():
            full, sliding = request.tables or ([], [])
            assert len(full) == len(sliding)
            assert all(full), "a full group has a hole"
            if not all(sliding):
                event("freed behind the window")
            assert sum(map(bool, sliding)) <= blocks_for(LAYERS[1], CONTEXT, self.budget * 3)
        for request in set(self.scheduler._requests.values()) - set(self.scheduler._running.values()):
            assert self.scheduler.kv.find_prefix(request).num_tokens == self.longest_hit(request)

    def teardown(self) -> None:
        """Whatever was left ends, and then everything is free."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):  # with a budget of one token a step, thousands for what 30 rules can add
            if self.plans:
                self.finish([2])
            elif self.scheduler.has_work:
                self.plan()
            else:
                break
        assert not self.open
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)

    # ---- oracles ----

    def take(self, outputs: Iterable[Any]) -> None:
        for output in outputs:
            assert output.request_id in self.open, "an output of a request that ended"
            if output.finish is not None:
                self.open.remove(output.request_id)
                self.ended.add(output.request_id)

    def check_plan(self, plan: StepPlan) -> None:
        names = [row.request_id for row in plan.rows]
        assert len(names) == len(set(names)), "a request is planned twice"
        assert set(names) <= self.open
        assert sum(row.num_tokens for row in plan.rows) <= self.budget
        assert len(self.scheduler._running) <= self.seats
        assert all(row.num_tokens > 0 for row in plan.rows)
        for name in plan.gone:
            del self.known[name]
            self.dropped |= {(flying.step, name) for flying in self.plans}
        for new in plan.new:
            assert new.request_id in names
            assert new.request_id not in self.known
            self.known[new.request_id] = list(new.token_ids)
        assert len(self.known) <= self.seats
        written: set[int] = set()
        for row in plan.rows:
            known = self.known[row.request_id]
            known += row.token_ids
            request = self.scheduler._requests[row.request_id]
            assert known == request.tokens + [PLACEHOLDER] * (len(known) - len(request.tokens))
            awaited = [
                planned
                for flying in self.plans
                for planned in flying.rows
                if planned.request_id == row.request_id
                and planned.num_logits
                and (flying.step, row.request_id) not in self.dropped
            ]
            if PLACEHOLDER in row.token_ids:
                event("named what is being sampled")
                assert row.token_ids.count(PLACEHOLDER) == 1
                assert len(known) == len(request.tokens) + len(awaited)
                assert not any(planned.drafts for planned in awaited)
            end = row.start + row.num_tokens - len(row.drafts)
            assert row.num_logits == (1 + len(row.drafts) if end == len(known) else 0)
            assert not row.drafts or end == len(known) == len(request.tokens)
            assert end + len(row.drafts) < request.limit
            for group in range(len(LAYERS)):
                blocks = self.written_blocks(row.start, row.num_tokens, request.tables[group])
                assert 0 not in blocks
                assert not written & blocks, "two requests write to one block"
                assert all(self.scheduler.kv.pool.refs(block) == 1 for block in blocks)
                written |= blocks

    @staticmethod
    def written_blocks(start: int, count: int, table: list[int]) -> set[int]:
        return {table[position // BLOCK] for position in range(start, start + count)}

    def remember(self, tables: dict[Request, list[list[int]]]) -> None:
        """Note what each newly cached block holds: the salt, the group and all tokens up to its end."""
        for request, groups in tables.items():
            for group, table in enumerate(groups):
                for index, block in enumerate(table):
                    key = self.pool_key(block)
                    if key is not None and self.ledger.get(block, (None,))[0] != key:
                        prefix = tuple(request.tokens[: (index + 1) * BLOCK])
                        assert len(prefix) == (index + 1) * BLOCK, "a block was cached before it was full"
                        self.ledger[block] = (key, (request.source.cache_salt, group, prefix))
        for block in range(1, self.scheduler.kv.pool.num_blocks):
            if (key := self.pool_key(block)) is not None:
                assert self.ledger[block][0] == key, "a block was cached by nobody who held it"

    def pool_key(self, block: int) -> bytes | None:
        return self.scheduler.kv.pool._keys[block]

    def longest_hit(self, request: Request) -> int:
        """Tokens the cache can serve, found by trying every length against what blocks really hold."""
        cached = {content for block, (key, content) in self.ledger.items() if self.pool_key(block) == key}
        salt, tokens = request.source.cache_salt, request.tokens
        best = 0
        for length in range(1, len(tokens) // BLOCK + 1 if self.caching else 1):
            computed = min(length * BLOCK, len(tokens) - 1)
            seen = {position // BLOCK for position in range(max(0, computed - WINDOW + 1), computed)}
            if computed < length * BLOCK:
                seen.add(length - 1)
            needed = [(0, index) for index in range(length)] + [(1, index) for index in seen]
            if all((salt, group, tuple(tokens[: (i + 1) * BLOCK])) in cached for group, i in needed):
                best = computed
        return best

    def check_start(self, request: Request, hit: PrefixHit) -> None:
        leader = self.scheduler._running.get(request.source.leader or "")
        if (
            leader is not None
            and not request.num_output_tokens
            and leader.num_done >= len(request.tokens) - 1
        ):
            event("forked" if hit.num_tokens == len(request.tokens) - 1 else "could not be forked")
            pairs = zip(hit.tables, leader.tables, strict=True)
            if all(
                block in (0, own) for table, owns in pairs for block, own in zip(table, owns, strict=False)
            ):
                return
        assert hit.num_tokens == self.longest_hit(request)
        if hit.num_tokens:
            event("hit")
        for group, table in enumerate(hit.tables):
            for index, block in enumerate(table):
                if block:
                    prefix = tuple(request.tokens[: (index + 1) * BLOCK])
                    assert self.ledger[block][1] == (request.source.cache_salt, group, prefix)


SchedulerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestScheduler = SchedulerMachine.TestCase
