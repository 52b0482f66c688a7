"""Drives an executor by hand, in the plainest way: what its compliance suite compares with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from llmkit.contracts import (
    Executor,
    KVLayout,
    NewRow,
    RowPlan,
    SamplePlan,
    SamplingParams,
    StepPlan,
    StepResult,
)
from llmkit.events import PositionLogprobs

GREEDY = SamplingParams(temperature=0)
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
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)

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
        end_ids: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
        prompt_logprobs_from: int = 1,
    ) -> Text:
        """A request whose blocks are enough for ``room`` more tokens; it enters with the next step."""
        tokens = [*prompt, *output]
        text = Text(
            request_id, tokens, len(prompt), self.blocks(len(tokens) + room), params, seed, told=len(tokens)
        )
        self.pending_new.append(
            NewRow(
                request_id,
                list(tokens),
                len(prompt),
                params,
                seed,
                0,
                end_ids,
                text.tables,
                bad_words=bad_words,
                prompt_logprobs_from=prompt_logprobs_from,
            )
        )
        return text

    def leave(self, text: Text) -> None:
        self.pending_gone.append(text.request_id)

    def launch(
        self,
        parts: Sequence[tuple[Text, int]],
        *,
        masks: bytes | None = None,
        mask_rows: Sequence[int] | None = None,
        drafts: Mapping[str, Sequence[int]] | None = None,
    ) -> Future[StepResult]:
        """Run a step of ``(text, number of its next tokens)``, with ``drafts`` behind those of some.

        Every row of logits is masked unless ``mask_rows`` says which are.
        """
        self.step += 1
        rows = []
        for text, count in sorted(parts, key=lambda part: part[1] > 1):
            own = list((drafts or {}).get(text.request_id, ()))
            done = text.computed + count == len(text.tokens)
            num_logits = 1 + len(own) if done else 0
            fresh = text.tokens[text.told :]
            nothing: list[list[int]] = [[] for _ in self.layout.groups]
            num_tokens = count + len(own)
            rows.append(RowPlan(text.request_id, text.computed, num_tokens, num_logits, fresh, nothing, own))
            text.computed += count
            text.told = len(text.tokens)
        plan = StepPlan(self.step, rows, self.pending_new, self.pending_gone, self.pending_copies)
        self.pending_new, self.pending_gone, self.pending_copies = [], [], []
        handle = self.executor.execute(plan)
        if masks and mask_rows is None:
            mask_rows = range(sum(row.num_logits for row in rows))
        return self.executor.sample(handle, SamplePlan(self.step, masks, list(mask_rows or ())))

    def run(
        self,
        parts: Sequence[tuple[Text, int]],
        *,
        masks: bytes | None = None,
        mask_rows: Sequence[int] | None = None,
        drafts: Mapping[str, Sequence[int]] | None = None,
    ) -> StepResult:
        """:meth:`launch`, wait, and append what was sampled; accepted drafts count as computed."""
        future = self.launch(parts, masks=masks, mask_rows=mask_rows, drafts=drafts)
        result = future.result(timeout=TIMEOUT_S)
        by_id = {text.request_id: text for text, _ in parts}
        for row in result.rows:
            text = by_id[row.request_id]
            text.tokens += row.token_ids
            text.computed += max(0, len(row.token_ids) - 1)
            text.logprobs += row.logprobs or []
            text.prompt_logprobs += row.prompt_logprobs or []
        return result

    def generate(self, texts: Sequence[Text], count: int, *, chunk: int = 1 << 30) -> list[list[int]]:
        """Run all of them together until each has ``count`` output tokens; their outputs."""
        while unfinished := [text for text in texts if len(text.output) < count]:
            self.run([(text, min(chunk, len(text.tokens) - text.computed)) for text in unfinished])
        return [text.output for text in texts]
