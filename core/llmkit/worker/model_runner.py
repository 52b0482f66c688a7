"""One step: a plan becomes arrays, a forward, logits, and then tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llmkit.contracts import (
    AttentionBackend,
    AttentionPlan,
    Model,
    RowResult,
    SamplePlan,
    StepContext,
    StepPlan,
    StepResult,
)
from llmkit.errors import EngineError
from llmkit.worker.batch import Batch, StepInputs
from llmkit.worker.kv_memory import BlockMemory
from llmkit.worker.sampler import Sampler, Samples, unpack_masks


@dataclass(slots=True)
class PendingStep:
    """A step whose forward ran and whose tokens are not sampled yet."""

    step: int
    inputs: StepInputs | None
    """None: the plan had no rows."""
    logits: Tensor | None
    """None: no row needs any."""


class ModelRunner:
    """Runs plans in two phases, so that token masks can be made while the forward runs."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        attention_plan: AttentionPlan,
        memory: BlockMemory,
        batch: Batch,
        sampler: Sampler,
    ) -> None:
        self.sampler = sampler
        self._model = model
        self._backend = backend
        self._attention_plan = attention_plan
        self._memory = memory
        self._batch = batch

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> PendingStep:
        """Apply the plan and run the forward up to the logits."""
        batch = self._batch
        batch.remove(plan.gone)
        self._memory.copy(plan.copies)
        batch.add(plan.new)
        if not plan.rows:
            return PendingStep(plan.step, None, None)
        inputs = batch.step(plan.rows)
        self._attention_plan.update(inputs.layout)
        context = StepContext(self._backend, self._attention_plan)
        if inputs.ranges:
            context.rows = inputs.ranges
            context.plugin_data = {request: batch.plugin_data[request] for request in inputs.ranges}
        hidden = self._model.forward(inputs.model, context, None).hidden
        if not inputs.sampled:
            return PendingStep(plan.step, inputs, None)
        if len(inputs.logit_tokens) != inputs.layout.num_tokens:
            hidden = hidden[inputs.logit_tokens]
        return PendingStep(plan.step, inputs, self._model.logits(hidden))

    @torch.inference_mode()
    def sample(self, pending: PendingStep, plan: SamplePlan) -> StepResult:
        """Sample every row that has logits."""
        inputs, logits = pending.inputs, pending.logits
        if pending.step != plan.step:
            raise EngineError(f"step {plan.step} is to be sampled, but step {pending.step} was launched")
        if inputs is None or logits is None:
            return StepResult(pending.step, [])
        masks = None
        if plan.masks is not None:
            masks = unpack_masks(plan.masks, plan.mask_rows, logits.shape[1])
        samples = self.sampler.sample(logits, inputs.slots, inputs.positions, masks)
        self._batch.sampled(inputs, samples.tokens)
        return StepResult(pending.step, _results(inputs.sampled, samples))


def _results(request_ids: list[str], samples: Samples) -> list[RowResult]:
    """A row each; one that allows no token says why in its ``error``."""
    logprobs = samples.logprobs or [None] * len(samples.tokens)
    rows = []
    for row, (request_id, token) in enumerate(zip(request_ids, samples.tokens, strict=True)):
        if row in samples.failed:
            rows.append(RowResult(request_id, [], error=samples.failed[row]))
        else:
            entry = logprobs[row]
            rows.append(RowResult(request_id, [token], None if entry is None else [entry]))
    return rows
