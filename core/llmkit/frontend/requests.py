"""From a checked prompt and its parameters to what the engine is sent; the server and ``LLM`` share it."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from llmkit.contracts import AddRequest, CompiledGrammar, EngineReady, RequestContext, SamplingParams
from llmkit.frontend.check import check_params, check_salt, resolve_max_tokens
from llmkit.frontend.services import FrontModel

_FLAT_TEMPERATURE = 1e6
"""Above it every distribution is flat to single precision, in which larger ones may overflow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and the deployment fix for every request."""

    max_model_len: int
    vocab_size: int
    """Embedding rows."""
    eos_ids: tuple[int, ...] = ()
    default_max_tokens: int | None = None
    """Of the model's generation config, for a request that gives none; cut to the context."""
    seed: int = 0
    """For requests that give none; 0 draws one."""

    @staticmethod
    def of(ready: EngineReady, model: FrontModel, seed: int) -> Limits:
        """Ends of sequence that the model has no row for cannot come and are left out."""
        ends = tuple(token_id for token_id in model.eos_ids if 0 <= token_id < ready.vocab_size)
        default_max_tokens = model.generation_defaults.get("max_tokens")
        return Limits(ready.max_model_len, ready.vocab_size, ends, default_max_tokens, seed)


@dataclass(frozen=True, slots=True)
class Attachments:
    """What ``prepare_request`` hooks added to a request."""

    cache_keys: tuple[tuple[str, bytes], ...] = ()
    plugin_data: dict[str, bytes] = field(default_factory=dict)


def make_requests(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    context: RequestContext,
    limits: Limits,
    attachments: Attachments,
    grammar: CompiledGrammar | None = None,
) -> list[AddRequest]:
    """``params.n`` requests with one prompt, one seed and ids of their own.

    ``prompt_ids`` have passed ``check_prompt``. Request ids are made here: a client's would let two
    requests share a key.

    :raises RequestError: anything about the request is wrong.
    """
    check_params(params, limits.vocab_size)
    check_salt(context.cache_salt)
    default = context.default_max_tokens
    if default is None:
        default = limits.default_max_tokens
    max_tokens = resolve_max_tokens(len(prompt_ids), params.max_tokens, limits.max_model_len, default)
    params = _in_engine_terms(params, max_tokens, limits)
    base, ids, arrival_s = uuid.uuid4().hex, list(prompt_ids), time.time()
    seed = _seed(params, limits)
    return [
        AddRequest(
            request_id=f"{base}-{choice}",
            prompt_ids=ids,
            params=params,
            seed=seed,
            max_tokens=max_tokens,
            eos_ids=() if params.ignore_eos else limits.eos_ids,
            choice=choice,
            priority=context.priority,
            arrival_s=arrival_s,
            cache_salt=context.cache_salt,
            cache_keys=attachments.cache_keys,
            plugin_data=attachments.plugin_data,
            grammar=grammar,
        )
        for choice in range(params.n)
    ]


def _in_engine_terms(params: SamplingParams, max_tokens: int, limits: Limits) -> SamplingParams:
    """The same request in numbers that fit the arrays of a batch."""
    top_k = params.top_k if 0 <= params.top_k < limits.vocab_size else 0
    min_tokens = min(params.min_tokens, max_tokens)
    temperature = min(params.temperature, _FLAT_TEMPERATURE)
    if (top_k, min_tokens, temperature) == (params.top_k, params.min_tokens, params.temperature):
        return params
    return msgspec.structs.replace(params, top_k=top_k, min_tokens=min_tokens, temperature=temperature)


def _seed(params: SamplingParams, limits: Limits) -> int:
    """64 unsigned bits: the request's, the deployment's or a new one."""
    if params.seed is not None:
        return params.seed % (1 << 64)
    return limits.seed % (1 << 64) if limits.seed else secrets.randbits(64)
