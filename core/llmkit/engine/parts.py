"""One request's part of a step: how the workers are told of it, and how its result is booked."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.contracts.scheduler import Accept
from llmkit.engine.kv_manager import PrefixHit
from llmkit.engine.request import Request
from llmkit.errors import EngineError
from llmkit.events import PositionLogprobs
from llmkit.messages import PLACEHOLDER, EngineStats, NewRow, RowPlan, RowResult, StepOutput
from llmkit.types import FinishReason


@dataclass(slots=True)
class Part:
    """One request's part of a step in flight."""

    request: Request
    epoch: int
    """The request's when it was planned; another one now makes this part stale."""
    start: int
    num_tokens: int
    num_logits: int
    new_blocks: list[list[int]]
    drafts: list[int]
    num_forced: int
    """The first so many drafts are all that a grammar allows; the rest are a speculator's."""


def plan_rows(parts: list[Part]) -> tuple[list[RowPlan], list[NewRow]]:
    """What the workers are told: short rows first, and all of those they do not know."""
    parts.sort(key=_num_tokens)
    new: list[NewRow] = []
    return [_row(part, new) for part in parts], new


def book(
    part: Part, result: RowResult | None, totals: EngineStats, accept: Accept | None = None
) -> StepOutput | None:
    """Take what a finished step gave one request; refused drafts count as not computed.

    What comes back is for the client; with ``finish`` the request is over. None: nothing to tell.
    """
    request = part.request
    if result is not None and result.error is not None:
        return end_with(request, FinishReason.ERROR, result.error)
    tokens = result.token_ids if result is not None and part.num_logits else []
    _count(part, tokens, totals)
    taken, end = request.extend(tokens)
    whole = False
    if accept is not None and request.followed and tokens:
        try:
            complete = accept(request.request_id, tokens[:taken])
        except ValueError as error:
            return end_with(request, FinishReason.ERROR, str(error))
        if complete is not None and (end is None or end[0] is not FinishReason.STOP or complete + 1 < taken):
            request.drop(taken - complete - 1)
            taken, end, whole = complete + 1, (FinishReason.STOP, None), True
    totals.generated_tokens += taken
    prompt_logprobs = None
    if result is not None and request.wants_prompt_logprobs:
        prompt_logprobs = _take_prompt_logprobs(part, result)
    if end is None and request.num_done >= request.limit:  # nothing was to follow the prompt
        end = FinishReason.LENGTH if request.source.pooling is None else FinishReason.STOP, None
    if not tokens and prompt_logprobs is None and end is None:
        return None
    reason, stop_token = end or (None, None)
    return StepOutput(
        request.request_id,
        tokens if taken == len(tokens) else tokens[:taken],
        result.logprobs[:taken] if result is not None and result.logprobs is not None else None,
        reason,
        stop_token,
        request.num_cached or 0,
        prompt_logprobs=prompt_logprobs,
        complete=whole,
        pooled=None if result is None else result.pooled,
        scheduled_s=request.scheduled_s,
    )


def count_hit(totals: EngineStats, num_prompt: int, hit: PrefixHit, *, connected: bool) -> None:
    """Of a request that starts. ``connected``: a KV connector was asked for what the pool had not."""
    cached = hit.num_tokens - hit.num_loaded
    totals.prefix_queries += num_prompt
    totals.prefix_hits += cached
    if connected:
        totals.offload_queries += num_prompt - cached
        totals.offload_hits += hit.num_loaded


def end_with(request: Request, finish: FinishReason, error: str | None = None) -> StepOutput:
    """The last output of a request that ends without a token."""
    return StepOutput(
        request.request_id,
        finish=finish,
        error=error,
        cached_tokens=request.num_cached or 0,
        scheduled_s=request.scheduled_s,
    )


def _count(part: Part, tokens: list[int], totals: EngineStats) -> None:
    """How far the request is computed now that this part has run.

    :raises EngineError: the executor sampled other than planned.
    """
    request = part.request
    if bool(tokens) != bool(part.num_logits) or len(tokens) > part.num_logits:
        raise EngineError(
            f"the executor sampled {len(tokens)} tokens for request {request.request_id!r}; "
            f"planned were {min(part.num_logits, 1)} to {part.num_logits}"
        )
    refused = part.num_logits - len(tokens)
    request.num_computed -= refused
    request.num_done = part.start + part.num_tokens - refused
    if part.start < request.num_prompt_tokens:
        end = min(part.start + part.num_tokens, request.num_prompt_tokens)
        totals.prompt_tokens += end - part.start
    if part.drafts:
        accepted = len(tokens) - 1
        totals.draft_tokens += len(part.drafts) - part.num_forced
        totals.accepted_tokens += max(0, accepted - part.num_forced)
        totals.forced_tokens += min(accepted, part.num_forced)


def _num_tokens(part: Part) -> int:
    return part.num_tokens


def _row(part: Part, new: list[NewRow]) -> RowPlan:
    request = part.request
    tokens, told = request.tokens, request.num_told
    # What it computes beyond its tokens and drafts is being sampled.
    known = max(len(tokens), part.start + part.num_tokens - len(part.drafts))
    request.num_told = known
    if told:
        untold = tokens[told:]
        if known > len(tokens):
            untold += [PLACEHOLDER] * (known - max(told, len(tokens)))
        added = part.new_blocks
    else:
        new.append(_new_row(request))
        untold, added = [], [[] for _ in part.new_blocks]
    return RowPlan(
        request.request_id,
        part.start,
        part.num_tokens,
        part.num_logits,
        untold,
        added,
        part.drafts,
    )


def _new_row(request: Request) -> NewRow:
    source = request.source
    return NewRow(
        request_id=source.request_id,
        token_ids=list(request.tokens),
        num_prompt=request.num_prompt_tokens,
        params=source.params,
        seed=source.seed,
        choice=source.choice,
        end_ids=request.end_ids,
        block_tables=[list(table) for table in request.tables],
        plugin_data=source.plugin_data,
        bad_words=source.bad_words,
        prompt_logprobs_from=request.prompt_logprobs_from,
        pooling=source.pooling,
    )


def _take_prompt_logprobs(part: Part, result: RowResult) -> list[PositionLogprobs] | None:
    """Those of this part, which are the next ones its client waits for."""
    request = part.request
    first = max(part.start + 1, request.prompt_logprobs_from)
    end = min(part.start + part.num_tokens + 1, request.num_prompt_tokens)
    given = result.prompt_logprobs or []
    if len(given) != max(0, end - first):
        raise EngineError(
            f"the executor gave {len(given)} prompt logprobs for request {request.request_id!r}; "
            f"planned were {max(0, end - first)}"
        )
    request.prompt_logprobs_from += len(given)
    return given or None
