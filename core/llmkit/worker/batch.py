"""The persistent batch: every row's tokens and block tables, updated by each plan and never rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmkit.contracts import NULL_BLOCK, PAD_SLOT, PLACEHOLDER, BatchLayout, ModelInput, NewRow, RowPlan
from llmkit.errors import EngineError
from llmkit.pooling import PoolingParams
from llmkit.worker.logit_rows import LogitRows, PromptRows
from llmkit.worker.pooler import PooledRow
from llmkit.worker.sampling_state import SamplingState

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The sizes of a worker's buffers."""

    max_rows: int
    max_tokens: int
    """In one step."""
    max_len: int
    """Tokens of one row, prompt and output."""
    block_sizes: tuple[int, ...]
    """Tokens a block, a KV group each."""

    @property
    def max_blocks(self) -> int:
        """Of one row in any group."""
        return max((-(-self.max_len // size) for size in self.block_sizes), default=1)


@dataclass(slots=True)
class StepInputs:
    """One step as arrays. ``layout`` and ``model`` are views of buffers that the next step overwrites."""

    layout: BatchLayout
    model: ModelInput
    ranges: dict[str, tuple[int, int]]
    """Token ranges of the rows that carry plugin data."""
    logit_tokens: Tensor
    """int64 [logits rows]: the token whose hidden state becomes each row's logits."""
    logits: LogitRows
    sampled: list[str]
    """Request ids of the rows that get a sample, in the plan's order."""
    sampled_slots: IntArray
    """[sampled rows]"""
    drafts: list[Sequence[int]] | None
    """What each sampled row is to verify; its logits rows are one more. None where no row has any."""
    prompts: list[PromptRows]
    """Rows that give prompt logprobs, in the plan's order."""
    planned: list[str]
    """Request ids of all rows."""
    pooled: list[PooledRow]
    """Rows whose prompt ends in this step and is pooled, in the plan's order."""


class Batch:
    """Owns the rows at hand: a slot each, from ``add`` until ``remove``."""

    def __init__(self, limits: BatchLimits, sampling: SamplingState) -> None:
        self._limits = limits
        self._sampling = sampling
        rows, tokens = limits.max_rows, limits.max_tokens
        self._slots: dict[str, int] = {}
        self._free = list(range(rows))[::-1]
        # np.zeros of this size costs no memory until a row of that length comes.
        self._tokens = np.zeros((rows, limits.max_len), np.int32)
        self._known = np.zeros(rows, np.int64)
        self._last = np.full(rows, _UNKNOWN, np.int64)
        tables = [(rows, limits.max_blocks)] * len(limits.block_sizes)
        self._tables = [np.full(shape, NULL_BLOCK, np.int32) for shape in tables]
        self._num_blocks = [[0] * rows for _ in limits.block_sizes]
        self.plugin_data: dict[str, dict[str, bytes]] = {}
        """Request id -> plugin -> bytes, of the rows that carry any."""
        self._pooling: dict[str, PoolingParams] = {}
        """Of the rows that are pooled."""

        # Buffers of one step, overwritten by the next.
        self._query_start = np.zeros(rows + 1, np.int32)
        self._seq_lens = np.zeros(rows, np.int32)
        self._step_tables = [np.zeros(shape, np.int32) for shape in tables]
        self._slot_mapping = [np.full(tokens, PAD_SLOT, np.int32) for _ in limits.block_sizes]
        self._token_ids = torch.zeros(tokens, dtype=torch.int64)
        self._positions = torch.zeros(tokens, dtype=torch.int64)
        self._token_ids_np = self._token_ids.numpy()
        self._positions_np = self._positions.numpy()
        self._count = np.arange(max(rows, tokens) + 1, dtype=np.int64)

    def remove(self, request_ids: Iterable[str]) -> None:
        """Rows leave; ids that are not here are ignored: they may have ended before they came."""
        for request_id in request_ids:
            slot = self._slots.pop(request_id, None)
            if slot is None:
                continue
            for table, held in zip(self._tables, self._num_blocks, strict=True):
                table[slot, : held[slot]] = NULL_BLOCK
                held[slot] = 0
            self._known[slot] = 0
            self._last[slot] = _UNKNOWN
            self._sampling.clear(slot)
            self.plugin_data.pop(request_id, None)
            self._pooling.pop(request_id, None)
            self._free.append(slot)

    def add(self, rows: Iterable[NewRow]) -> None:
        """Rows come, at first or again after preemption.

        :raises EngineError: a row is here already, or there is no slot left.
        """
        for row in rows:
            if row.request_id in self._slots:
                raise EngineError(f"request {row.request_id!r} is in the batch already")
            if not self._free:
                raise EngineError(f"the batch holds {self._limits.max_rows} rows, as many as it can")
            slot = self._slots[row.request_id] = self._free.pop()
            self._append_tokens(slot, row.token_ids)
            self._append_blocks(slot, row.block_tables)
            self._sampling.put(slot, row)
            if row.plugin_data:
                self.plugin_data[row.request_id] = row.plugin_data
            if row.pooling is not None:
                self._pooling[row.request_id] = row.pooling

    def sampled(self, step: StepInputs, tokens: Sequence[int]) -> None:
        """Note the last token that each sampled row got, for placeholders to come."""
        self._last[step.sampled_slots] = tokens

    def step(self, rows: Sequence[RowPlan]) -> StepInputs:
        """Take what the plan adds to its rows and lay the step out.

        :raises EngineError: the plan contradicts what it told before.
        """
        try:
            slot_list = [self._slots[row.request_id] for row in rows]
        except KeyError as failure:
            raise EngineError(f"the plan has a row of request {failure}, which is not in the batch") from None
        for row, slot in zip(rows, slot_list, strict=True):
            if row.token_ids:
                tokens = self._resolve(slot, row.token_ids)
                self._append_tokens(slot, tokens)
                self._sampling.append(slot, tokens)
            if any(row.new_blocks):
                self._append_blocks(slot, row.new_blocks)
        slots = np.array(slot_list, np.int64)
        starts = np.array([row.start for row in rows], np.int64)
        lengths = np.array([row.num_tokens for row in rows], np.int64)
        num_logits = np.array([row.num_logits for row in rows], np.int64)
        ends = starts + lengths
        drafted = [row for row in rows if row.drafts]
        self._check(rows, slots, lengths, ends, num_logits)
        for row in drafted:
            end = row.start + row.num_tokens
            self._tokens[self._slots[row.request_id], end - len(row.drafts) : end] = row.drafts
        layout = self._lay_out(slots, starts, lengths, ends)
        picked = np.flatnonzero(num_logits)
        last_tokens = layout.query_start[picked + 1].astype(np.int64) - 1
        logits = LogitRows(slots[picked], ends[picked], None, self._tokens)
        if drafted:
            logits, last_tokens = _with_drafts(logits, last_tokens, num_logits[picked])
        return StepInputs(
            layout=layout,
            model=ModelInput(
                self._token_ids[: layout.num_tokens],
                self._positions[: layout.num_tokens],
                token_types=self._token_types(rows, layout),
            ),
            ranges=self._ranges(rows),
            logit_tokens=torch.from_numpy(last_tokens),
            logits=logits,
            sampled=[rows[i].request_id for i in picked.tolist()],
            sampled_slots=slots[picked],
            drafts=[rows[i].drafts for i in picked.tolist()] if drafted else None,
            prompts=self._prompts(rows, slots, layout),
            planned=[row.request_id for row in rows],
            pooled=self._pooled(rows, slots, layout),
        )

    def _pooled(self, rows: Sequence[RowPlan], slots: IntArray, layout: BatchLayout) -> list[PooledRow]:
        """Rows that are pooled and whose last known token is in this step."""
        if not self._pooling:
            return []
        known, starts = self._known[slots].tolist(), layout.query_start.tolist()
        return [
            PooledRow(row.request_id, starts[index], starts[index + 1], self._pooling[row.request_id])
            for index, row in enumerate(rows)
            if row.request_id in self._pooling and row.start + row.num_tokens == known[index]
        ]

    def _token_types(self, rows: Sequence[RowPlan], layout: BatchLayout) -> Tensor | None:
        """1 from each row's second text on; None where no row has one."""
        seconds = [params.second if (params := self._pooling.get(row.request_id)) else None for row in rows]
        if all(second is None for second in seconds):
            return None
        begins = np.array(
            [self._limits.max_len if second is None else second for second in seconds], np.int64
        )
        positions = self._positions_np[: layout.num_tokens]
        return torch.from_numpy(
            (positions >= np.repeat(begins, np.diff(layout.query_start))).astype(np.int64)
        )

    def _ranges(self, rows: Sequence[RowPlan]) -> dict[str, tuple[int, int]]:
        """Token ranges of the rows that carry plugin data."""
        if not self.plugin_data:
            return {}
        bounds = [0, *accumulate(row.num_tokens for row in rows)]
        ids = enumerate(row.request_id for row in rows)
        return {r: (bounds[i], bounds[i + 1]) for i, r in ids if r in self.plugin_data}

    def _prompts(self, rows: Sequence[RowPlan], slots: IntArray, layout: BatchLayout) -> list[PromptRows]:
        """Prompt positions ``start + 1`` to ``start + num_tokens`` of the rows that ask for logprobs."""
        sampling = self._sampling
        found = []
        for index in np.flatnonzero(sampling.prompt_logprobs[slots] >= 0).tolist():
            row, slot = rows[index], int(slots[index])
            begin = max(row.start + 1, int(sampling.prompt_from[slot]))
            end = min(row.start + row.num_tokens + 1, int(sampling.num_prompt[slot]))
            if begin < end:
                first = int(layout.query_start[index]) + begin - 1 - row.start
                targets = self._tokens[slot, begin:end].tolist()
                found.append(PromptRows(row.request_id, first, targets, int(sampling.prompt_logprobs[slot])))
        return found

    def _lay_out(self, slots: IntArray, starts: IntArray, lengths: IntArray, ends: IntArray) -> BatchLayout:
        rows = len(slots)
        query_start = self._query_start[: rows + 1]
        np.cumsum(lengths, out=query_start[1:])
        tokens = int(query_start[rows])
        longest = int(lengths.max())
        row_of = np.repeat(slots, lengths)
        positions = self._positions_np[:tokens]
        np.add(self._count[:tokens], np.repeat(starts - query_start[:-1], lengths), out=positions)
        self._token_ids_np[:tokens] = self._tokens[row_of, positions]
        seq_lens = self._seq_lens[:rows]
        seq_lens[:] = ends
        for table, out, mapping, size in zip(
            self._tables, self._step_tables, self._slot_mapping, self._limits.block_sizes, strict=True
        ):
            np.take(table, slots, axis=0, out=out[:rows], mode="clip")
            blocks = table[row_of, positions // size]
            written = blocks * size + positions % size
            mapping[:tokens] = np.where(blocks == NULL_BLOCK, PAD_SLOT, written)
        return BatchLayout(
            num_rows=rows,
            num_tokens=tokens,
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=tuple(out[:rows] for out in self._step_tables),
            slot_mapping=tuple(mapping[:tokens] for mapping in self._slot_mapping),
            num_decode_rows=rows if longest == 1 else int(np.argmax(lengths > 1)),
            max_query_len=longest,
            max_seq_len=int(ends.max()),
        )

    def _check(
        self,
        rows: Sequence[RowPlan],
        slots: IntArray,
        lengths: IntArray,
        ends: IntArray,
        num_logits: IntArray,
    ) -> None:
        """Ask before anything is written: the plan must fit the buffers and what was told."""
        if len(rows) > self._limits.max_rows or int(lengths.sum()) > self._limits.max_tokens:
            raise EngineError(
                f"the plan has {len(rows)} rows and {int(lengths.sum())} tokens; this worker takes "
                f"{self._limits.max_rows} and {self._limits.max_tokens}"
            )
        num_drafts = np.array([len(row.drafts) for row in rows], np.int64)
        known = self._known[slots]
        wrong = (lengths < 1) | (ends > known + num_drafts) | (ends > self._limits.max_len)
        if wrong.any():
            index = int(np.argmax(wrong))
            row = rows[index]
            raise EngineError(
                f"request {row.request_id!r}: tokens {row.start} to {row.start + row.num_tokens} are "
                f"planned, but the worker knows {known[index]} and {len(row.drafts)} drafts, and takes "
                f"{self._limits.max_len} a row"
            )
        # Drafts follow the last known token, and each of them and that token gets logits.
        wrong = (num_drafts > 0) & ((ends != known + num_drafts) | (num_logits > lengths))
        wrong |= np.where(num_drafts > 0, num_logits != num_drafts + 1, num_logits > 1)
        if wrong.any():
            row = rows[int(np.argmax(wrong))]
            raise EngineError(
                f"request {row.request_id!r}: {row.num_logits} rows of logits, {len(row.drafts)} draft "
                f"tokens, {row.num_tokens} tokens from {row.start} on; there must be one row more than "
                "drafts, and the drafts must follow all that the worker knows"
            )

    def _resolve(self, slot: int, token_ids: list[int]) -> list[int]:
        if PLACEHOLDER not in token_ids:
            return token_ids
        last = int(self._last[slot])
        if last == _UNKNOWN:
            raise EngineError("the plan has a placeholder for a row that has sampled nothing")
        return [last if token == PLACEHOLDER else token for token in token_ids]

    def _append_tokens(self, slot: int, token_ids: Sequence[int]) -> None:
        known = int(self._known[slot])
        end = known + len(token_ids)
        if end > self._limits.max_len:
            raise EngineError(f"a row of {end} tokens; this worker takes {self._limits.max_len}")
        self._tokens[slot, known:end] = token_ids
        self._known[slot] = end

    def _append_blocks(self, slot: int, blocks: Sequence[Sequence[int]]) -> None:
        for table, held, new in zip(self._tables, self._num_blocks, blocks, strict=True):
            if new:
                end = held[slot] + len(new)
                if end > self._limits.max_blocks:
                    raise EngineError(f"a row of {end} blocks; this worker takes {self._limits.max_blocks}")
                table[slot, held[slot] : end] = new
                held[slot] = end


def _with_drafts(
    logits: LogitRows, last_tokens: IntArray, num_logits: IntArray
) -> tuple[LogitRows, IntArray]:
    """Rows of logits and their tokens, ``num_logits`` for each row instead of the last one alone."""
    first_rows = np.cumsum(num_logits) - num_logits
    ahead = np.arange(int(num_logits.sum()), dtype=np.int64) - np.repeat(first_rows, num_logits)
    behind = ahead - np.repeat(num_logits - 1, num_logits)
    rows = LogitRows(
        slots=np.repeat(logits.slots, num_logits),
        positions=np.repeat(logits.positions, num_logits) + behind,
        ahead=ahead,
        tokens=logits.tokens,
    )
    return rows, np.repeat(last_tokens, num_logits) + behind
