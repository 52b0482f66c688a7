"""Logprobs of prompt tokens, in slices: their logits are never in memory all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from llmkit.events import PositionLogprobs
from llmkit.worker.logit_rows import PromptRows
from llmkit.worker.logprobs import position_logprobs
from llmkit.worker.results import PromptLogprobs

_SLICE = 1 << 22
"""Logits at a time: 16 MiB, and a few times as much while they become logprobs."""


def prompt_logprobs(
    prompts: Sequence[PromptRows], hidden: Tensor, logits_of: Callable[[Tensor], Tensor], vocab_size: int
) -> dict[str, PromptLogprobs]:
    """By request id; of the model's own distribution. ``hidden``: [tokens of the step, hidden]."""
    return {prompt.request_id: _one(prompt, hidden, logits_of, vocab_size) for prompt in prompts}


def _one(
    prompt: PromptRows, hidden: Tensor, logits_of: Callable[[Tensor], Tensor], vocab_size: int
) -> PromptLogprobs:
    positions: list[PositionLogprobs] = []
    step = max(1, _SLICE // vocab_size)
    for begin in range(0, len(prompt.targets), step):
        targets = prompt.targets[begin : begin + step]
        first = prompt.first + begin
        logits = logits_of(hidden[first : first + len(targets)])
        positions += position_logprobs(logits, targets, [prompt.wanted] * len(targets))
    if any(math.isnan(entry.sampled.logprob) for entry in positions):
        return PromptLogprobs([], "no prompt logprobs can be given: the model's logits are not finite")
    return PromptLogprobs(positions)
