"""From samples to what the engine is told: drafts verified, one row a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmkit.contracts import RowResult
from llmkit.events import PositionLogprobs
from llmkit.pooling import Pooled
from llmkit.worker.batch import StepInputs
from llmkit.worker.sampler import Samples

NOTHING = Samples([], None)
"""Of a step in which no row is sampled."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Those of one row in one step; or why there are none."""

    positions: list[PositionLogprobs]
    error: str | None = None


def step_rows(
    inputs: StepInputs, samples: Samples, prompts: Mapping[str, PromptLogprobs]
) -> tuple[list[RowResult], list[int]]:
    """A result for each row that sampled or has prompt logprobs, in the plan's order; and the last token
    of each that sampled (0 where there is none)."""
    if inputs.drafts is None:
        rows = [_one(request, samples, row) for row, request in enumerate(inputs.sampled)]
        lasts = samples.tokens
    else:
        rows, lasts = _verified(inputs.sampled, inputs.drafts, samples)
    if prompts:
        rows = _with_prompts(inputs.planned, rows, prompts)
    return rows, lasts


def pooled_rows(inputs: StepInputs, pooled: Mapping[str, Pooled | str]) -> list[RowResult]:
    """A result for each row that was pooled; a text is why it could not be."""
    return [
        RowResult(row.request_id, [], error=result)
        if isinstance(result := pooled[row.request_id], str)
        else RowResult(row.request_id, [], pooled=result)
        for row in inputs.pooled
    ]


def _one(request_id: str, samples: Samples, row: int) -> RowResult:
    """A row that allows no token says why in its ``error``."""
    if samples.failed and row in samples.failed:
        return RowResult(request_id, [], error=samples.failed[row])
    entry = samples.logprobs[row] if samples.logprobs is not None else None
    return RowResult(request_id, [samples.tokens[row]], None if entry is None else [entry])


def _verified(
    request_ids: Sequence[str], drafts: Sequence[Sequence[int]], samples: Samples
) -> tuple[list[RowResult], list[int]]:
    """Each request's samples up to the first that is not the next draft, and that one too.

    A row that allows no token ends what is kept before it: the request fails, as without drafts, only
    once that row is its first.
    """
    rows: list[RowResult] = []
    lasts: list[int] = []
    first = 0
    for request_id, own in zip(request_ids, drafts, strict=True):
        count = 0
        for row in range(first, first + len(own) + 1):
            if row in samples.failed:
                break
            count += 1
            if count > len(own) or samples.tokens[row] != own[count - 1]:
                break
        if count:
            tokens = samples.tokens[first : first + count]
            entries = samples.logprobs[first : first + count] if samples.logprobs is not None else []
            logprobs = [entry for entry in entries if entry is not None]
            rows.append(RowResult(request_id, tokens, logprobs or None))
            lasts.append(tokens[-1])
        else:
            rows.append(RowResult(request_id, [], error=samples.failed[first]))
            lasts.append(0)
        first += len(own) + 1
    return rows, lasts


def _with_prompts(
    planned: Sequence[str], rows: Sequence[RowResult], prompts: Mapping[str, PromptLogprobs]
) -> list[RowResult]:
    sampled = {row.request_id: row for row in rows}
    merged = []
    for request_id in planned:
        row, prompt = sampled.get(request_id), prompts.get(request_id)
        if prompt is None:
            if row is not None:
                merged.append(row)
        elif prompt.error is not None:
            merged.append(RowResult(request_id, [], error=prompt.error))
        elif row is None:
            merged.append(RowResult(request_id, [], prompt_logprobs=prompt.positions))
        else:
            merged.append(RowResult(request_id, row.token_ids, row.logprobs, row.error, prompt.positions))
    return merged
