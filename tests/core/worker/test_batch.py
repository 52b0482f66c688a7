from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.contracts import NULL_BLOCK, PAD_SLOT, PLACEHOLDER, NewRow, RowPlan, SamplingParams
from llmkit.errors import EngineError
from llmkit.worker.batch import Batch, BatchLimits, StepInputs
from llmkit.worker.sampling_state import SamplingState

LIMITS = BatchLimits(max_rows=4, max_tokens=32, max_len=40, block_sizes=(4, 8))
GREEDY = SamplingParams(temperature=0)


def make() -> Batch:
    return Batch(LIMITS, SamplingState(LIMITS.max_rows, 100))


def new_row(request_id: str, tokens: list[int], tables: list[list[int]], **more: Any) -> NewRow:
    return NewRow(request_id, tokens, len(tokens), GREEDY, 0, 0, (), tables, **more)


def plan(request_id: str, start: int, count: int, *, logits: int = 0, **more: Any) -> RowPlan:
    return RowPlan(
        request_id,
        start,
        count,
        logits,
        more.get("token_ids", []),
        more.get("new_blocks", [[], []]),
        more.get("drafts", []),
    )


@dataclass
class Known:
    """A row as the test remembers it."""

    tokens: list[int]
    tables: list[list[int]]
    start: int = 0
    news: list[list[int]] = field(default_factory=lambda: [[], []])


def check(step: StepInputs, parts: list[tuple[Known, int]]) -> None:
    """The step's arrays, one token at a time."""
    layout = step.layout
    token = 0
    for index, (row, count) in enumerate(parts):
        assert layout.query_start[index] == token
        assert layout.seq_lens[index] == row.start + count
        for position in range(row.start, row.start + count):
            assert step.model.token_ids is not None
            assert step.model.token_ids[token] == row.tokens[position]
            assert step.model.positions[token] == position
            for group, size in enumerate(LIMITS.block_sizes):
                block = row.tables[group][position // size]
                expected = PAD_SLOT if block == NULL_BLOCK else block * size + position % size
                assert layout.slot_mapping[group][token] == expected
            token += 1
        for group, table in enumerate(row.tables):
            rest = LIMITS.max_blocks - len(table)
            assert layout.block_tables[group][index].tolist() == table + [NULL_BLOCK] * rest
    assert (layout.num_rows, layout.num_tokens) == (len(parts), token)
    assert layout.query_start[len(parts)] == token
    counts = [count for _, count in parts]
    assert layout.max_query_len == max(counts)
    assert layout.max_seq_len == max(row.start + count for row, count in parts)
    assert all(count == 1 for count in counts[: layout.num_decode_rows])


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_arrays_are_what_the_plans_so_far_say(data: st.DataObject) -> None:
    batch, rows, number = make(), dict[str, Known](), 0
    blocks = st.integers(0, 50)
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        gone = data.draw(st.sets(st.sampled_from([*rows, "unknown"])), label="gone")
        batch.remove(gone)
        rows = {name: row for name, row in rows.items() if name not in gone}
        for _ in range(data.draw(st.integers(0, LIMITS.max_rows - len(rows)), label="new")):
            length = data.draw(st.integers(1, 20))
            tables = [
                data.draw(st.lists(blocks, min_size=-(-length // size), max_size=-(-length // size)))
                for size in LIMITS.block_sizes
            ]
            name, number = f"row {number}", number + 1
            rows[name] = Known(list(range(length)), tables)
            batch.add([new_row(name, list(range(length)), [list(table) for table in tables])])
        parts = list[tuple[str, int, list[int], list[list[int]]]]()
        for name in data.draw(st.permutations(sorted(rows)), label="order"):
            row = rows[name]
            left = len(row.tokens) - row.start
            told = [data.draw(st.integers(0, 99))] if left == 0 and len(row.tokens) < LIMITS.max_len else []
            row.tokens += told
            news = [
                data.draw(st.lists(blocks, min_size=need, max_size=need))
                for need in (
                    max(0, -(-len(row.tokens) // size) - len(table))
                    for size, table in zip(LIMITS.block_sizes, row.tables, strict=True)
                )
            ]
            row.tables = [table + new for table, new in zip(row.tables, news, strict=True)]
            if left + len(told) and sum(part[1] for part in parts) < LIMITS.max_tokens - 8:
                parts.append((name, data.draw(st.integers(1, min(8, left + len(told)))), told, news))
            elif told or any(news):
                parts.append((name, 1, told, news))
        if not parts:
            continue
        parts.sort(key=lambda part: part[1] > 1)
        step = batch.step(
            [
                plan(name, rows[name].start, count, token_ids=told, new_blocks=news)
                for name, count, told, news in parts
            ]
        )
        check(step, [(rows[name], count) for name, count, *_ in parts])
        for name, count, *_ in parts:
            rows[name].start += count


def test_only_rows_that_ask_for_logits_are_sampled() -> None:
    batch = make()
    batch.add([new_row(name, [1, 2, 3, 4, 5], [[1, 2], [1]]) for name in "abc"])
    step = batch.step([plan("c", 0, 1), plan("a", 0, 5, logits=1), plan("b", 0, 5, logits=1)])
    assert step.sampled == ["a", "b"]
    assert step.logit_tokens.tolist() == [5, 10]
    assert step.logits.positions.tolist() == [5, 5]


def test_drafts_are_input_and_no_part_of_their_row() -> None:
    batch = make()
    batch.add([new_row(name, [1, 2, 3], [[1], [1]]) for name in "ab"])
    step = batch.step(
        [plan("a", 2, 1, logits=1), plan("b", 2, 3, logits=3, drafts=[7, 8], new_blocks=[[5], []])]
    )
    assert step.model.token_ids is not None
    assert step.model.token_ids.tolist() == [3, 3, 7, 8]
    assert step.model.positions.tolist() == [2, 2, 3, 4]
    assert step.logit_tokens.tolist() == [0, 1, 2, 3]
    assert step.logits.positions.tolist() == [3, 3, 4, 5]
    assert [step.logits.before(row).tolist() for row in (0, 1, 3)] == [[1, 2, 3], [1, 2, 3], [1, 2, 3, 7, 8]]
    assert [step.logits.drafts(row).tolist() for row in range(4)] == [[], [], [7], [7, 8]]
    batch.sampled(step, [41, 42])
    step = batch.step([plan("b", 3, 2, logits=1, token_ids=[7, PLACEHOLDER])])
    assert step.model.token_ids is not None
    assert step.model.token_ids.tolist() == [7, 42]


def test_a_placeholder_is_the_rows_own_last_sample() -> None:
    batch = make()
    batch.add([new_row(name, [1, 2], [[1], [1]]) for name in "ab"])
    batch.sampled(batch.step([plan("a", 0, 2, logits=1), plan("b", 0, 2, logits=1)]), [41, 42])
    step = batch.step([plan("b", 2, 1, token_ids=[PLACEHOLDER]), plan("a", 2, 1, token_ids=[PLACEHOLDER])])
    assert step.model.token_ids is not None
    assert step.model.token_ids.tolist() == [42, 41]


def test_a_placeholder_of_a_row_that_sampled_nothing_is_refused_also_in_a_used_slot() -> None:
    batch = make()
    batch.add([new_row("a", [1], [[1], [1]])])
    batch.sampled(batch.step([plan("a", 0, 1, logits=1)]), [41])
    batch.remove(["a"])
    batch.add([new_row("b", [1], [[1], [1]])])
    with pytest.raises(EngineError, match="placeholder"):
        batch.step([plan("b", 1, 1, token_ids=[PLACEHOLDER])])


def test_only_rows_with_plugin_data_have_ranges() -> None:
    batch = make()
    batch.add([new_row("a", [1, 2, 3], [[1], [1]]), new_row("b", [1, 2], [[1], [1]])])
    assert batch.step([plan("a", 0, 3), plan("b", 0, 1)]).ranges == {}
    batch.add([new_row("c", [1, 2], [[1], [1]], plugin_data={"shout": b"x"})])
    assert batch.step([plan("b", 1, 1), plan("c", 0, 2)]).ranges == {"c": (1, 3)}
    assert batch.plugin_data == {"c": {"shout": b"x"}}
    batch.remove(["c"])
    assert batch.plugin_data == {}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([plan("stranger", 0, 1)], "stranger", id="unknown"),
        pytest.param([plan("a", 0, 6)], "the worker knows 5", id="untold tokens"),
        pytest.param([plan("a", 0, 0)], "tokens 0 to 0", id="nothing"),
        pytest.param([plan("a", 0, 2, logits=2)], "2 rows of logits, 0 draft", id="logits without drafts"),
        pytest.param([plan("a", 4, 2, logits=1, drafts=[1])], "1 rows of logits, 1 draft", id="no logits"),
        pytest.param([plan("a", 2, 3, logits=2, drafts=[1])], "the drafts must follow", id="not at the end"),
        pytest.param([plan("a", 4, 3, logits=2, drafts=[1])], "knows 5 and 1 drafts", id="not so many"),
        pytest.param([plan("a", 0, 5)] * 7, "this worker takes 4 and 32", id="too much"),
        pytest.param([plan("a", 5, 36, token_ids=[1] * 36)], "a row of 41 tokens", id="too long"),
        pytest.param([plan("a", 0, 1, new_blocks=[[1] * 10, []])], "blocks", id="too many blocks"),
    ],
)
def test_a_plan_that_contradicts_what_was_told_is_an_engine_error(rows: list[RowPlan], message: str) -> None:
    batch = make()
    batch.add([new_row("a", [1, 2, 3, 4, 5], [[1, 2], [1]])])
    with pytest.raises(EngineError, match=message):
        batch.step(rows)


def test_a_row_cannot_come_twice_nor_when_all_slots_are_taken() -> None:
    batch = make()
    batch.add([new_row(name, [1], [[1], [1]]) for name in "abcd"])
    with pytest.raises(EngineError, match="'a' is in the batch"):
        batch.add([new_row("a", [1], [[1], [1]])])
    with pytest.raises(EngineError, match="4 rows"):
        batch.add([new_row("e", [1], [[1], [1]])])
    batch.remove(["b"])
    batch.add([new_row("e", [1], [[1], [1]])])


def test_steps_reuse_their_buffers() -> None:
    batch = make()
    batch.add([new_row("a", [1, 2, 3], [[1], [1]])])
    first, second = batch.step([plan("a", 0, 1)]), batch.step([plan("a", 1, 1)])
    for one, other in (
        (first.layout.query_start, second.layout.query_start),
        (first.layout.slot_mapping[0], second.layout.slot_mapping[0]),
        (first.layout.block_tables[1], second.layout.block_tables[1]),
    ):
        assert np.shares_memory(one, other)
