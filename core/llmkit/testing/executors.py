"""What every executor must do: subclass :class:`ExecutorContract` in a test module and say how to make one.

The suite needs no particular model, only one whose greedy text does not depend on batching
(``deterministic``): it compares an executor with itself, driven in the plainest way.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import (
    PLACEHOLDER,
    Executor,
    KVLayout,
    NewRow,
    RowPlan,
    SamplePlan,
    SamplingParams,
    StepPlan,
    StepResult,
    WorkerReport,
)
from llmkit.engine.layout import KVBudget, plan_layout
from llmkit.errors import EngineError

GREEDY = SamplingParams(temperature=0)
RANDOM = SamplingParams(temperature=1.0, top_p=0.95)
TIMEOUT_S = 60.0


@dataclass
class Text:
    """One request as the driver knows it."""

    request_id: str
    tokens: list[int]
    num_prompt: int
    tables: list[list[int]]
    params: SamplingParams = GREEDY
    seed: int = 7
    computed: int = 0
    told: int = 0
    """Tokens that the workers know."""

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


@dataclass
class Driver:
    """Drives an executor by hand: hands out blocks, never takes one back, one step at a time."""

    executor: Executor
    layout: KVLayout
    step: int = 0
    next_block: int = 1
    pending_new: list[NewRow] = field(default_factory=list)
    pending_gone: list[str] = field(default_factory=list)
    pending_copies: list[tuple[int, int]] = field(default_factory=list)

    def blocks(self, num_tokens: int) -> list[list[int]]:
        """Fresh blocks for so many tokens, a list for each group."""
        tables = []
        for group in self.layout.groups:
            count = -(-num_tokens // group.spec.block_size)
            tables.append(list(range(self.next_block, self.next_block + count)))
            self.next_block += count
        assert self.next_block <= self.layout.num_blocks, "the suite's pool is too small"
        return tables

    def enter(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        params: SamplingParams = GREEDY,
        seed: int = 7,
        output: Sequence[int] = (),
        room: int = 12,
    ) -> Text:
        """A request whose blocks are enough for ``room`` more tokens; it enters with the next step."""
        tokens = [*prompt, *output]
        text = Text(
            request_id, tokens, len(prompt), self.blocks(len(tokens) + room), params, seed, told=len(tokens)
        )
        self.pending_new.append(
            NewRow(request_id, list(tokens), len(prompt), params, seed, 0, (), text.tables)
        )
        return text

    def leave(self, text: Text) -> None:
        self.pending_gone.append(text.request_id)

    def launch(self, parts: Sequence[tuple[Text, int]], *, masks: bytes | None = None) -> Future[StepResult]:
        """Run a step of ``(text, number of its next tokens)``."""
        self.step += 1
        rows = []
        for text, count in sorted(parts, key=lambda part: part[1] > 1):
            done = text.computed + count == len(text.tokens)
            fresh = text.tokens[text.told :]
            nothing: list[list[int]] = [[] for _ in self.layout.groups]
            rows.append(RowPlan(text.request_id, text.computed, count, int(done), fresh, nothing))
            text.computed += count
            text.told = len(text.tokens)
        plan = StepPlan(self.step, rows, self.pending_new, self.pending_gone, self.pending_copies)
        self.pending_new, self.pending_gone, self.pending_copies = [], [], []
        handle = self.executor.execute(plan)
        mask_rows = list(range(sum(row.num_logits for row in rows))) if masks else []
        return self.executor.sample(handle, SamplePlan(self.step, masks, mask_rows))

    def run(self, parts: Sequence[tuple[Text, int]], *, masks: bytes | None = None) -> StepResult:
        """:meth:`launch`, wait, and append what was sampled."""
        result = self.launch(parts, masks=masks).result(timeout=TIMEOUT_S)
        by_id = {text.request_id: text for text, _ in parts}
        for row in result.rows:
            by_id[row.request_id].tokens += row.token_ids
        return result

    def generate(self, texts: Sequence[Text], count: int, *, chunk: int = 1 << 30) -> list[list[int]]:
        """Run all of them together until each has ``count`` output tokens; their outputs."""
        while unfinished := [text for text in texts if len(text.output) < count]:
            self.run([(text, min(chunk, len(text.tokens) - text.computed)) for text in unfinished])
        return [text.output for text in texts]


class ExecutorContract:
    """Tests any executor passes.

    ``make`` gives a fresh one, not started, over a model with a context of at least 64 tokens and
    a vocabulary of at least 64, ``deterministic``, at least 4 rows and 64 tokens a step. Since 0.1.
    """

    @abstractmethod
    def make(self, tmp_path: Path) -> Executor:
        """A fresh executor, not started."""

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Iterator[Executor]:
        executor = self.make(tmp_path)
        yield executor
        executor.shutdown(5.0)

    @pytest.fixture
    def report(self, executor: Executor) -> WorkerReport:
        self.phases: list[tuple[str, float]] = []
        return executor.start(lambda phase, fraction: self.phases.append((phase, fraction)))

    @pytest.fixture
    def driver(self, executor: Executor, report: WorkerReport) -> Driver:
        budget = KVBudget(report.layers, report.kv_bytes, report.kv_why)
        cache = CacheConfig(num_gpu_blocks_override=512)
        planned = plan_layout(budget, cache, SchedulerConfig(), model_len=64, max_model_len=None)
        executor.allocate(planned.layout, lambda phase, fraction: None)
        return Driver(executor, planned.layout)

    def test_the_report_describes_the_model(self, report: WorkerReport) -> None:
        assert report.vocab_size > 0
        assert report.kv_bytes > 0
        assert report.kv_why
        assert report.layers
        assert {choice.kind for choice in report.choices} >= {"loader", "linear", "model", "attention"}

    def test_progress_names_phases_and_stays_within_0_and_1(self, report: WorkerReport) -> None:
        assert {phase for phase, _ in self.phases}
        assert all(0 <= fraction <= 1 for _, fraction in self.phases)

    def test_the_same_request_twice_gives_the_same_tokens(self, driver: Driver) -> None:
        first = driver.generate([driver.enter("a", PROMPT)], 8)
        assert driver.generate([driver.enter("b", PROMPT)], 8) == first

    def test_a_prompt_in_chunks_gives_what_a_whole_one_gives(self, driver: Driver) -> None:
        whole = driver.generate([driver.enter("whole", PROMPT)], 8)
        assert driver.generate([driver.enter("chunks", PROMPT)], 8, chunk=3) == whole

    def test_a_chunk_within_a_prompt_gives_no_row(self, driver: Driver) -> None:
        text = driver.enter("a", PROMPT)
        assert driver.run([(text, 5)]).rows == []
        assert [row.request_id for row in driver.run([(text, len(PROMPT) - 5)]).rows] == ["a"]

    def test_a_row_in_a_batch_gives_what_it_gives_alone(self, driver: Driver) -> None:
        kinds = (GREEDY, RANDOM, GREEDY, RANDOM)
        alone = [
            driver.generate([driver.enter(f"alone {i}", PROMPT[i:], params=kind, seed=i)], 8)[0]
            for i, kind in enumerate(kinds)
        ]
        texts = [
            driver.enter(f"together {i}", PROMPT[i:], params=kind, seed=i) for i, kind in enumerate(kinds)
        ]
        driver.run([(texts[0], 3), (texts[1], 4)])
        assert driver.generate(texts, 8, chunk=5) == alone

    def test_a_preempted_row_that_comes_again_goes_on_as_if_nothing_was(self, driver: Driver) -> None:
        whole = driver.generate([driver.enter("whole", PROMPT, params=RANDOM)], 8)
        cut = driver.enter("cut", PROMPT, params=RANDOM)
        driver.generate([cut], 4)
        driver.leave(cut)
        other = driver.enter("other", PROMPT[::-1])
        driver.generate([other], 2)
        again = driver.enter("cut", PROMPT, output=cut.output, params=RANDOM)
        assert driver.generate([again, other], 8)[:1] == whole

    def test_a_row_continues_on_blocks_that_were_copied(self, driver: Driver) -> None:
        source = driver.enter("source", PROMPT)
        first = driver.generate([source], 1)[0]
        whole = driver.generate([source], 8)
        copied = driver.enter("copied", PROMPT, output=first)
        copied.computed = len(PROMPT)
        for old, new in zip(source.tables, copied.tables, strict=True):
            driver.pending_copies += list(zip(old, new, strict=False))
        overwriting = driver.enter("overwriting", PROMPT[::-1])
        overwriting.tables = source.tables
        assert driver.generate([copied, overwriting], 8)[:1] == whole

    def test_a_placeholder_stands_for_the_token_sampled_last(self, driver: Driver) -> None:
        expected = driver.generate([driver.enter("told", PROMPT)], 6)[0]
        text = driver.enter("untold", PROMPT)
        driver.run([(text, len(PROMPT))])
        sampled = [text.tokens.pop()]
        while len(sampled) < 6:
            text.tokens.append(PLACEHOLDER)
            (row,) = driver.launch([(text, 1)]).result(timeout=TIMEOUT_S).rows
            sampled += row.token_ids
        assert sampled == expected

    def test_gone_rows_free_their_places_and_unknown_ones_do_no_harm(self, driver: Driver) -> None:
        expected = driver.generate([driver.enter("first", PROMPT[:3])], 2)
        driver.pending_gone += ["first", "never seen"]
        for number in range(8):
            text = driver.enter(f"passing {number}", PROMPT[:3], room=4)
            assert driver.generate([text], 2) == expected
            driver.leave(text)

    def test_a_plan_without_rows_gives_no_results(self, driver: Driver) -> None:
        assert driver.run([]).rows == []

    def test_a_mask_leaves_only_what_it_allows(self, driver: Driver, report: WorkerReport) -> None:
        text = driver.enter("masked", PROMPT, params=RANDOM)
        words = np.zeros(-(-report.vocab_size // 32), np.uint32)
        words[33 // 32] = 1 << (33 % 32)
        driver.run([(text, len(PROMPT))], masks=words.tobytes())
        assert text.output == [33]

    def test_a_mask_that_allows_nothing_fails_its_row_alone(
        self, driver: Driver, report: WorkerReport
    ) -> None:
        expected = driver.generate([driver.enter("alone", PROMPT)], 3)[0]
        good, bad = driver.enter("good", PROMPT), driver.enter("bad", PROMPT)
        words = -(-report.vocab_size // 32)
        masks = b"\xff" * 4 * words + bytes(4 * words)
        result = driver.run([(good, len(PROMPT)), (bad, len(PROMPT))], masks=masks)
        rows = {row.request_id: row for row in result.rows}
        assert (rows["bad"].token_ids, rows["good"].error) == ([], None)
        assert rows["bad"].error
        driver.executor.check_health()
        driver.leave(bad)
        assert driver.generate([good], 3)[0] == expected

    def test_logprobs_come_for_rows_that_ask(self, driver: Driver) -> None:
        asks = driver.enter("asks", PROMPT, params=SamplingParams(temperature=0, logprobs=3))
        silent = driver.enter("silent", PROMPT)
        result = driver.run([(asks, len(PROMPT)), (silent, len(PROMPT))])
        rows = {row.request_id: row for row in result.rows}
        assert rows["silent"].logprobs is None
        (entry,) = rows["asks"].logprobs or []
        assert entry.sampled.token_id == rows["asks"].token_ids[0] == entry.top[0].token_id
        assert entry.sampled.rank == 1
        assert len(entry.top) == 3
        assert all(math.isfinite(top.logprob) and top.logprob <= 0 for top in entry.top)

    def test_a_named_method_answers_for_every_rank(self, driver: Driver) -> None:
        answers = driver.executor.call("describe")
        assert answers
        assert all(answer["threads"] >= 1 for answer in answers)
        with pytest.raises(EngineError, match="no_such_method"):
            driver.executor.call("no_such_method")

    def test_a_failed_step_is_the_futures_exception_and_shows_in_its_health(self, driver: Driver) -> None:
        driver.executor.check_health()
        stranger = Text("stranger", list(PROMPT), len(PROMPT), driver.blocks(8), told=len(PROMPT))
        future = driver.launch([(stranger, 4)])
        assert isinstance(future.exception(timeout=TIMEOUT_S), EngineError)
        with pytest.raises(EngineError):
            driver.executor.check_health()

    def test_shutdown_is_final_and_may_be_repeated(self, driver: Driver) -> None:
        driver.executor.shutdown(5.0)
        driver.executor.shutdown(5.0)
        with pytest.raises(EngineError):
            driver.executor.check_health()


PROMPT = [11, 42, 7, 7, 23, 5, 50, 31, 3, 19, 60, 2, 44, 8, 29, 36, 1, 57, 13, 40]
