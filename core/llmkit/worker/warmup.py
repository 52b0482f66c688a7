"""Steps on made-up rows before the first request, so that what is compiled or set up late is by then."""

from __future__ import annotations

from llmkit.contracts import NULL_BLOCK, NewRow, Progress, RowPlan, SamplePlan, SamplingParams, StepPlan
from llmkit.pooling import PoolingParams
from llmkit.worker.batch import BatchLimits
from llmkit.worker.model_runner import ModelRunner

_PREFILL = (2, 128)
"""Prompt lengths, tokens: the small and the large path of linear methods and attention."""
_MOST_ROWS = 8
_GREEDY = SamplingParams(temperature=0)
_EVERYTHING = SamplingParams(
    temperature=1, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=1
)


def warm_up(runner: ModelRunner, limits: BatchLimits, progress: Progress, *, pooling: bool = False) -> None:
    """Prefill and decode, one row and several, greedy and sampled; of a model that pools, prefill alone.

    All rows have the null block alone, to which nothing is written: the pool stays as it was.
    """
    longest = min(limits.max_tokens, limits.max_len - 1)
    lengths = sorted({min(length, longest) for length in _PREFILL})
    for done, length in enumerate(lengths):
        progress("warming up", done / len(lengths))
        rows = min(limits.max_rows, _MOST_ROWS) if length == lengths[0] else 1
        if pooling:
            _pool(runner, limits, min(rows, max(1, longest // length)), length)
            continue
        for params in (_GREEDY, _EVERYTHING):
            _run(runner, limits, min(rows, max(1, longest // length)), length, params)
    progress("warming up", 1.0)


def _run(runner: ModelRunner, limits: BatchLimits, rows: int, length: int, params: SamplingParams) -> None:
    """One prefill of ``rows`` prompts, one decode step of all and one of the first alone."""
    names = [f"warm-up {row}" for row in range(rows)]
    tables = [[NULL_BLOCK] * -(-min(length + 2, limits.max_len) // size) for size in limits.block_sizes]
    nothing: list[list[int]] = [[] for _ in tables]
    new = [NewRow(name, [0] * length, length, params, 0, 0, (), tables) for name in names]
    plans = [
        StepPlan(0, [RowPlan(name, 0, length, 1, [], nothing) for name in names], new=new),
        StepPlan(0, [RowPlan(name, length, 1, 1, [0], nothing) for name in names], gone=[]),
        StepPlan(0, [], gone=names),
    ]
    if length + 2 <= limits.max_len:
        plans.insert(2, StepPlan(0, [RowPlan(names[0], length + 1, 1, 1, [0], nothing)], gone=names[1:]))
    for plan in plans:
        runner.sample(runner.execute(plan), SamplePlan(0))


def _pool(runner: ModelRunner, limits: BatchLimits, rows: int, length: int) -> None:
    """One step of ``rows`` prompts."""
    names = [f"warm-up {row}" for row in range(rows)]
    tables = [[NULL_BLOCK] * -(-length // size) for size in limits.block_sizes]
    nothing: list[list[int]] = [[] for _ in tables]
    new = [
        NewRow(name, [0] * length, length, _GREEDY, 0, 0, (), tables, pooling=PoolingParams())
        for name in names
    ]
    for plan in (
        StepPlan(0, [RowPlan(name, 0, length, 0, [], nothing) for name in names], new=new),
        StepPlan(0, [], gone=names),
    ):
        runner.sample(runner.execute(plan), SamplePlan(0))
