"""What every executor must do: subclass :class:`ExecutorContract` in a test module and say how to make one.

The suite needs no particular model, only one whose greedy text does not depend on batching
(``deterministic``): it compares an executor with itself, driven in the plainest way.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import PLACEHOLDER, Executor, SamplingParams, WorkerReport
from llmkit.engine.layout import KVBudget, plan_layout
from llmkit.errors import EngineError
from llmkit.testing.executor_driver import GREEDY, TIMEOUT_S, Driver, Text

RANDOM = SamplingParams(temperature=1.0, top_p=0.95)
KINDS = (
    GREEDY,
    RANDOM,
    SamplingParams(
        temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.5, min_tokens=9
    ),
    SamplingParams(temperature=0, frequency_penalty=1.0, logit_bias={4: 2.0}, min_tokens=12),
)
"""Ways to sample that tell a row behind drafts from one that is not."""


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

    def test_a_step_may_be_launched_before_the_last_ones_result_is_taken(self, driver: Driver) -> None:
        if driver.executor.max_concurrent_batches < 2:
            pytest.skip("it runs a step at a time")
        for params in (GREEDY, KINDS[2]):
            name = f"told {params.temperature}"
            expected = driver.generate([driver.enter(name, PROMPT, params=params)], 9)[0]
            text = driver.enter(f"un{name}", PROMPT, params=params)
            pending = driver.launch([(text, len(PROMPT))])
            sampled = []
            for _ in range(9):
                text.tokens.append(PLACEHOLDER)
                following = driver.launch([(text, 1)])
                sampled += [row.token_ids for row in pending.result(timeout=TIMEOUT_S).rows]
                pending = following
            pending.result(timeout=TIMEOUT_S)
            assert sampled == [[token] for token in expected]

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
        driver.run([(text, len(PROMPT))], masks=_only(33, report.vocab_size))
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

    @pytest.mark.parametrize("kind", range(len(KINDS)))
    def test_drafts_change_how_fast_tokens_come_and_never_which(self, driver: Driver, kind: int) -> None:
        """Right drafts, wrong ones and none in one batch, beside the same requests without any."""
        params = replace(KINDS[kind], logprobs=2)
        more: dict[str, Any] = {"params": params, "end_ids": (7,), "bad_words": ((3,), (5, 11))}
        plain = driver.enter("plain", PROMPT, room=24, **more)
        expected = driver.generate([plain], 16)[0]
        texts = [driver.enter(f"drafted {i}", PROMPT, room=24, **more) for i in range(2)]
        driver.run([(text, len(PROMPT)) for text in texts])
        steps = 0
        while unfinished := [text for text in texts if len(text.output) < 16]:
            drafts = {}
            for number, text in enumerate(unfinished):
                done = len(text.output)
                own = expected[done : done + (steps + number) % 4]
                if (steps + number) % 3 == 1 and own:
                    own[len(own) // 2] = (own[len(own) // 2] + 1) % 64
                drafts[text.request_id] = own
            driver.run([(text, 1) for text in unfinished], drafts=drafts)
            steps += 1
        assert steps < 15
        for text in texts:
            assert text.output[:16] == expected
            assert text.logprobs[:16] == plain.logprobs

    def test_right_drafts_are_all_kept_and_a_wrong_one_ends_what_is(self, driver: Driver) -> None:
        expected = driver.generate([driver.enter("plain", PROMPT)], 8)[0]
        text = driver.enter("drafted", PROMPT)
        driver.run([(text, len(PROMPT))])
        (row,) = driver.run([(text, 1)], drafts={"drafted": expected[1:4]}).rows
        assert row.token_ids == expected[1:5]
        wrong = [expected[5], (expected[6] + 1) % 64, expected[7]]
        (row,) = driver.run([(text, 1)], drafts={"drafted": wrong}).rows
        assert row.token_ids == expected[5:7]

    def test_drafts_may_follow_a_prompt(self, driver: Driver) -> None:
        expected = driver.generate([driver.enter("plain", PROMPT)], 8)[0]
        text = driver.enter("drafted", PROMPT)
        (row,) = driver.run([(text, len(PROMPT))], drafts={"drafted": expected[:3]}).rows
        assert row.token_ids == expected[:4]

    def test_each_row_behind_a_draft_has_a_mask_of_its_own(
        self, driver: Driver, report: WorkerReport
    ) -> None:
        text, other = driver.enter("masked", PROMPT, params=RANDOM), driver.enter("other", PROMPT)
        driver.run([(text, len(PROMPT)), (other, len(PROMPT))])
        allowed = [33, 40, 12]
        masks = b"".join(_only(token, report.vocab_size) for token in allowed)
        parts = [(other, 1), (text, 1)]
        drafts = {"masked": [33, 41], "other": [1]}
        driver.run(parts, masks=masks, mask_rows=[2, 3, 4], drafts=drafts)
        assert text.output[1:] == [33, 40]

    def test_a_row_behind_a_draft_that_allows_nothing_fails_once_it_is_the_first(
        self, driver: Driver, report: WorkerReport
    ) -> None:
        text = driver.enter("masked", PROMPT)
        driver.run([(text, len(PROMPT))])
        nothing = bytes(4 * -(-report.vocab_size // 32))
        masks = _only(33, report.vocab_size) + nothing
        (row,) = driver.run([(text, 1)], masks=masks, drafts={"masked": [33]}).rows
        assert (row.token_ids, row.error) == ([33], None)
        (row,) = driver.run([(text, 1)], masks=nothing).rows
        assert row.token_ids == []
        assert row.error

    def test_bad_words_are_never_completed(self, driver: Driver) -> None:
        expected = driver.generate([driver.enter("free", PROMPT)], 8)[0]
        pair = (expected[2], expected[3])
        held = driver.enter("held", PROMPT, bad_words=(pair, (expected[6],)))
        (output,) = driver.generate([held], 8)
        assert output[:3] == expected[:3]
        assert output[3] != expected[3]
        assert expected[6] not in output

    def test_only_allowed_tokens_come(self, driver: Driver) -> None:
        params = SamplingParams(temperature=1.0, allowed_token_ids=(5, 9, 33))
        (output,) = driver.generate([driver.enter("held", PROMPT, params=params)], 8)
        assert set(output) <= {5, 9, 33}

    def test_prompt_logprobs_are_the_same_whole_and_in_chunks_and_come_once(self, driver: Driver) -> None:
        params = SamplingParams(temperature=0, prompt_logprobs=2)
        whole, chunked = (
            driver.enter("whole", PROMPT, params=params),
            driver.enter("c", PROMPT, params=params),
        )
        driver.generate([whole], 2)
        driver.generate([chunked], 2, chunk=3)
        assert [entry.sampled.token_id for entry in whole.prompt_logprobs] == PROMPT[1:]
        assert chunked.prompt_logprobs == whole.prompt_logprobs
        assert {len(entry.top) for entry in whole.prompt_logprobs} == {2}
        later = driver.enter("later", PROMPT, params=params, prompt_logprobs_from=7)
        driver.generate([later], 1, chunk=4)
        assert later.prompt_logprobs == whole.prompt_logprobs[6:]

    def test_a_prompt_whose_logprobs_are_all_that_is_wanted_needs_no_sample(self, driver: Driver) -> None:
        params = SamplingParams(temperature=0, prompt_logprobs=0)
        whole = driver.enter("whole", PROMPT, params=params)
        driver.run([(whole, len(PROMPT))])
        text = driver.enter("alone", PROMPT, params=params)
        (row,) = driver.run([(text, len(PROMPT) - 1)]).rows
        assert row.token_ids == []
        assert row.prompt_logprobs == whole.prompt_logprobs

    def test_a_named_method_answers_for_every_rank(self, driver: Driver) -> None:
        answers = driver.executor.call("describe")
        assert answers
        assert all(answer["threads"] >= 1 for answer in answers)
        with pytest.raises(EngineError, match="no_such_method"):
            driver.executor.call("no_such_method")

    @pytest.mark.parametrize(("level", "tags"), [(1, ["kv_cache"]), (2, ["weights", "kv_cache"])])
    def test_after_a_sleep_the_same_request_gives_the_same_tokens(
        self, driver: Driver, level: int, tags: list[str]
    ) -> None:
        expected = driver.generate([driver.enter("before", PROMPT, params=RANDOM)], 8)
        driver.pending_gone.append("before")
        driver.run([])  # no row stays behind, as the engine sees to
        for cycle in range(2):
            driver.executor.call("sleep", level)
            driver.executor.call("sleep", level)
            for tag in tags:
                driver.executor.call("wake_up", [tag])
            driver.executor.check_health()
            name = f"after {cycle}"
            assert driver.generate([driver.enter(name, PROMPT, params=RANDOM)], 8) == expected
            driver.pending_gone.append(name)
            driver.run([])

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


def _only(token: int, vocab_size: int) -> bytes:
    """A mask that allows one token."""
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    words[token // 32] = 1 << (token % 32)
    return words.tobytes()
