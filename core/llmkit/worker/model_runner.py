"""One step: a plan becomes arrays, a forward, logits, and then tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from llmkit.contracts import (
    AttentionBackend,
    AttentionPlan,
    KVMover,
    Model,
    SamplePlan,
    StepContext,
    StepPlan,
    StepResult,
)
from llmkit.errors import EngineError
from llmkit.pooling import Pooled
from llmkit.worker.batch import Batch, StepInputs
from llmkit.worker.kv_memory import BlockMemory
from llmkit.worker.pooler import HiddenPooler
from llmkit.worker.prompt_logprobs import prompt_logprobs
from llmkit.worker.results import NOTHING, PromptLogprobs, pooled_rows, step_rows
from llmkit.worker.sampler import Sampler
from llmkit.worker.token_masks import read_masks


@dataclass(slots=True)
class PendingStep:
    """A step whose forward ran and whose tokens are not sampled yet."""

    step: int
    inputs: StepInputs | None
    """None: the plan had no rows."""
    logits: Tensor | None
    """None: no row is sampled."""
    prompts: dict[str, PromptLogprobs] = field(default_factory=dict)
    """Request id -> what its prompt tokens in this step are worth, where it asks."""
    failed_loads: list[str] = field(default_factory=list)
    """Requests that a KV connector could not give what it was to."""
    pooled: dict[str, Pooled | str] = field(default_factory=dict)
    """Request id -> what its prompt was pooled to; a text is why it could not be."""


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
        mover: KVMover | None = None,
        pooler: HiddenPooler | None = None,
    ) -> None:
        """``pooler``: of a model that pools."""
        self.sampler = sampler
        self._model = model
        self._backend = backend
        self._attention_plan = attention_plan
        self._memory = memory
        self._batch = batch
        self._mover = mover
        self._pooler = pooler

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> PendingStep:
        """Apply the plan and run the forward up to the logits."""
        batch = self._batch
        batch.remove(plan.gone)
        failed = self._move(plan.transfers)
        self._memory.copy(plan.copies)
        batch.add(plan.new)
        if not plan.rows:
            return PendingStep(plan.step, None, None, failed_loads=failed)
        inputs = batch.step(plan.rows)
        self._attention_plan.update(inputs.layout)
        context = StepContext(self._backend, self._attention_plan)
        if inputs.ranges:
            context.rows = inputs.ranges
            context.plugin_data = {request: batch.plugin_data[request] for request in inputs.ranges}
        hidden = self._model.forward(inputs.model, context, None).hidden
        prompts: dict[str, PromptLogprobs] = {}
        if inputs.prompts:
            prompts = prompt_logprobs(inputs.prompts, hidden, self._model.logits, self._model.vocab_size)
        if inputs.pooled:
            if self._pooler is None:
                raise EngineError("the plan pools prompts, but this worker's model generates")
            pooled = self._pooler.pool(hidden, inputs.pooled)
            return PendingStep(plan.step, inputs, None, prompts, failed, pooled)
        if not inputs.sampled:
            return PendingStep(plan.step, inputs, None, prompts, failed)
        if len(inputs.logit_tokens) != inputs.layout.num_tokens:
            hidden = hidden[inputs.logit_tokens]
        return PendingStep(plan.step, inputs, self._model.logits(hidden), prompts, failed)

    @torch.inference_mode()
    def sample(self, pending: PendingStep, plan: SamplePlan) -> StepResult:
        """Sample every row that has logits, and keep of the drafts what was sampled too."""
        inputs, logits = pending.inputs, pending.logits
        if pending.step != plan.step:
            raise EngineError(f"step {plan.step} is to be sampled, but step {pending.step} was launched")
        if inputs is None:
            return StepResult(pending.step, [], pending.failed_loads)
        if pending.pooled:
            return StepResult(pending.step, pooled_rows(inputs, pending.pooled), pending.failed_loads)
        samples = NOTHING
        if logits is not None:
            masks = None
            if plan.masks is not None:
                masks = read_masks(plan.masks, plan.mask_rows, logits.shape[1])
            samples = self.sampler.sample(logits, inputs.logits, masks)
        rows, lasts = step_rows(inputs, samples, pending.prompts)
        self._batch.sampled(inputs, lasts)
        return StepResult(pending.step, rows, pending.failed_loads)

    def _move(self, transfers: bytes) -> list[str]:
        """Let the KV connector save and load blocks; the requests that miss some."""
        if not transfers:
            return []
        if self._mover is None:
            raise EngineError("the plan has KV transfers, but this worker has no KV connector")
        return list(self._mover.apply(transfers))
