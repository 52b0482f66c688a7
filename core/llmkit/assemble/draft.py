"""A second model that writes ahead of the first, in an engine of its own inside the engine process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from llmkit.assemble.model import open_model
from llmkit.config import CacheConfig, Config, ModelConfig, SchedulerConfig, SpeculationConfig
from llmkit.contracts.speculator import DraftRequest
from llmkit.contracts.weights import CheckpointInfo, ModelFiles, Progress
from llmkit.engine.core import EngineCore
from llmkit.errors import StartupError, UsageError
from llmkit.kv import KVLayout
from llmkit.messages import AddRequest, EngineReady, EngineStats
from llmkit.registry import Registry
from llmkit.types import SamplingParams

Build = Callable[[Config, ModelFiles, CheckpointInfo, Registry, Progress], tuple[EngineCore, EngineReady]]


class ModelDrafts:
    """Writes ahead of requests with a model of its own; a ``DraftEngine``. Owns the core.

    It keeps nothing between calls but its prefix cache: each proposal is a request that begins with all
    tokens so far, of which only those since the last proposal, and what is left of a block, are
    computed again.
    """

    def __init__(self, core: EngineCore, ready: EngineReady, known_ids: int) -> None:
        """``known_ids``: token ids of the model that is drafted for are below it."""
        self.core = core
        self.vocab_size = ready.vocab_size
        self.described = (
            f"{_size(ready.weight_bytes)} of weights, {_size(ready.kv_bytes)} of KV, "
            f"context {ready.max_model_len}"
        )
        self._max_model_len = ready.max_model_len
        self._may_be_unknown = known_ids > ready.vocab_size

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Nothing for requests beyond its context, or with a token that is none of its vocabulary.

        :raises EngineError: a step failed; it is of no use afterwards.
        """
        drafts: dict[str, list[int]] = {request.request_id: [] for request in requests}
        for request in requests:
            if self._can_follow(request):
                self.core.add(self._start(request))
        while self.core.has_work:
            step = self.core.step()
            for output in step.outputs if step is not None else ():
                drafts[output.request_id] += output.token_ids
        return list(drafts.values())

    @property
    def stats(self) -> EngineStats:
        return self.core.stats

    def close(self) -> None:
        """Free weights and KV memory; idempotent."""
        self.core.shutdown()

    def _can_follow(self, request: DraftRequest) -> bool:
        if request.most < 1 or len(request.token_ids) >= self._max_model_len:
            return False
        return not self._may_be_unknown or max(request.token_ids) < self.vocab_size

    def _start(self, request: DraftRequest) -> AddRequest:
        return AddRequest(
            request_id=request.request_id,
            prompt_ids=list(request.token_ids),
            params=self._params(request.params),
            seed=request.seed,
            max_tokens=request.most,
            choice=request.choice,
            cache_salt=request.scope.hex(),
        )

    def _params(self, params: SamplingParams) -> SamplingParams:
        """What shapes the distribution; nothing that ends a request or is wanted with its tokens."""
        bias, allowed = params.logit_bias, params.allowed_token_ids
        if self._may_be_unknown:
            bias = {token: amount for token, amount in bias.items() if token < self.vocab_size}
            allowed = None if allowed is None else tuple(i for i in allowed if i < self.vocab_size) or None
        return SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            logit_bias=bias,
            allowed_token_ids=allowed,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class DraftedFor:
    """The engine that is drafted for."""

    config: Config
    layout: KVLayout
    max_model_len: int
    vocab_size: int


def open_draft(
    reference: str, target: DraftedFor, components: Registry, build: Build, progress: Progress
) -> ModelDrafts:
    """Find the model behind ``reference`` and start an engine for it.

    Its pool has as many blocks as the other's, so it can follow every request that runs there.

    :raises StartupError: it cannot be served here. :raises UsageError: a setting does not suit it.
    """

    def told(phase: str, fraction: float) -> None:
        progress(f"draft model: {phase}", fraction)

    try:
        opened = open_model(_config(reference, target, target.max_model_len), components, told)
        context = min(target.max_model_len, opened.info.context_length or target.max_model_len)
        core, ready = build(_config(reference, target, context), opened.files, opened.info, components, told)
    except (StartupError, UsageError) as error:
        raise type(error)(f"--draft-model {reference}: {error}") from error
    return ModelDrafts(core, ready, target.vocab_size)


def _config(reference: str, target: DraftedFor, max_model_len: int) -> Config:
    """The other's machine and limits; all else as it is by default, and nobody drafts for the draft."""
    config = target.config
    return dataclasses.replace(
        config,
        model=ModelConfig(
            model=reference,
            dtype=config.model.dtype,
            max_model_len=max_model_len,
            trust_remote_code=config.model.trust_remote_code,
        ),
        cache=CacheConfig(
            block_size=config.cache.block_size, num_gpu_blocks_override=target.layout.num_blocks
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        ),
        speculation=SpeculationConfig(),
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
