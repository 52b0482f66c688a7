"""Small engines for the tests of this folder: a real scheduler over a model of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmkit.config import CacheConfig, SchedulerConfig
from llmkit.contracts import (
    AddRequest,
    Drafter,
    DraftRequest,
    Drafts,
    KVCacheSpec,
    KVDirectory,
    PositionLogprobs,
    RequestView,
    SamplingParams,
    SchedulerSpec,
    SchedulingPolicy,
    StepOutput,
)
from llmkit.engine.core import EngineCore
from llmkit.engine.grammars import GrammarManager
from llmkit.engine.layout import KVBudget, plan_layout
from llmkit.engine.scheduler import ContinuousScheduler
from llmkit.testing.kv_model import KVModelExecutor, KVModelSpec, generate

ROOT = b"r" * 32


class ByOrder(SchedulingPolicy):
    """First come, first served, spelt out so that the core's tests need no plugin."""

    def key(self, request: RequestView) -> int:
        return request.order

    def admit(self, request: RequestView, running: Sequence[RequestView]) -> bool:
        return True

    def victim(self, running: Sequence[RequestView]) -> RequestView:
        return max(running, key=lambda request: request.order)


class Foresight:
    """Drafts of up to ``length`` tokens: those that will come, but for one in ``wrong`` now and then."""

    def __init__(self, model: KVModelSpec, length: int = 3, wrong: int = 5) -> None:
        self._model = model
        self._length = length
        self._wrong = wrong
        self._asked = 0
        self.forgotten: list[str] = []

    def serves(self, request: AddRequest) -> bool:
        return not request.request_id.startswith("plain")

    def propose(self, requests: Sequence[DraftRequest]) -> list[Drafts]:
        return [Drafts(self._guess(request), 0) for request in requests]

    def forget(self, request_ids: Sequence[str]) -> None:
        self.forgotten += request_ids

    def _guess(self, request: DraftRequest) -> list[int]:
        assert request.most > 0
        self._asked += 1
        drafts = generate(self._model, request.token_ids, min(request.most, self._asked % (self._length + 1)))
        if drafts and self._asked % self._wrong == 0:
            at = self._asked // self._wrong % len(drafts)
            drafts[at] = (drafts[at] + 1) % self._model.vocab_size
        return drafts


def make_request(name: str, prompt: Sequence[int], max_tokens: int = 4, **fields: Any) -> AddRequest:
    fields.setdefault("params", SamplingParams())
    return AddRequest(request_id=name, prompt_ids=list(prompt), seed=0, max_tokens=max_tokens, **fields)


def make_scheduler(
    layers: Sequence[KVCacheSpec] = KVModelSpec().layers,
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 16,
    max_model_len: int = 64,
    caching: bool = True,
    policy: Any = None,
    drafter: Drafter | None = None,
    accept: Any = None,
    directory: KVDirectory | None = None,
    overlapped: bool = False,
) -> ContinuousScheduler:
    """``num_blocks`` counts the null block."""
    cache = CacheConfig(
        block_size=layers[0].block_size, num_gpu_blocks_override=num_blocks, enable_prefix_caching=caching
    )
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        async_scheduling=overlapped,
    )
    planned = plan_layout(
        KVBudget(layers, 0, "none"), cache, scheduler, model_len=None, max_model_len=max_model_len
    )
    spec = SchedulerSpec(
        scheduler=scheduler,
        cache=cache,
        layout=planned.layout,
        block_size=layers[0].block_size,
        max_model_len=max_model_len,
        cache_root=ROOT,
        policy=policy or ByOrder(),
        drafter=drafter,
        accept=accept,
        directory=directory,
    )
    return ContinuousScheduler(spec)


class Engine:
    """A core over the model of integers, with what it gave so far."""

    def __init__(
        self,
        model: KVModelSpec | None = None,
        *,
        in_flight: int = 1,
        grammars: GrammarManager | None = None,
        **limits: Any,
    ) -> None:
        self.model = model or KVModelSpec()
        if grammars is not None:
            limits["accept"] = grammars.accept
        self.scheduler = make_scheduler(self.model.layers, **limits)
        self.executor = KVModelExecutor(self.model)
        self.executor.max_concurrent_batches = in_flight
        self.executor.allocate(self.scheduler.kv.layout, lambda phase, fraction: None)
        self.core = EngineCore(
            self.scheduler, self.executor, grammars, overlapped=limits.get("overlapped", False)
        )
        self.tokens: dict[str, list[int]] = {}
        self.prompt_logprobs: dict[str, list[PositionLogprobs]] = {}
        self.last: dict[str, StepOutput] = {}
        self.steps = 0

    def add(self, *requests: AddRequest) -> None:
        for request in requests:
            self.tokens[request.request_id] = []
            self.prompt_logprobs[request.request_id] = []
            self.take(self.core.add(request))

    def take(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            before = self.last.get(output.request_id)
            assert before is None or before.finish is None, "an output after the last"
            self.last[output.request_id] = output
            self.tokens[output.request_id] += output.token_ids
            self.prompt_logprobs[output.request_id] += output.prompt_logprobs or []

    def step(self) -> None:
        step = self.core.step()
        self.steps += 1
        if step is not None:
            self.take(step.outputs)

    def run(self, limit: int = 5000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            if not self.core.has_work:
                return
            self.step()
            self.scheduler.check()
        raise AssertionError(f"still busy after {limit} steps")
