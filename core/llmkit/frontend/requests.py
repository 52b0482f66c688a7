"""From a checked prompt and its parameters to what the engine is sent; the server and ``LLM`` share it."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from llmkit.config import LimitsConfig
from llmkit.contracts import (
    AddRequest,
    CompiledGrammar,
    EngineReady,
    RequestContext,
    SamplingParams,
    Thinking,
    Tokenizer,
)
from llmkit.errors import RequestError
from llmkit.frontend.check import (
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    check_params,
    check_salt,
    check_truncation,
    resolve_max_tokens,
)
from llmkit.frontend.fields import texts
from llmkit.frontend.output import params_of_choice
from llmkit.frontend.services import FrontModel
from llmkit.frontend.thinking import check_writable

_FLAT_TEMPERATURE = 1e6
"""Above it every distribution is flat to single precision, in which larger ones may overflow."""
_BOUNDS = LimitsConfig()
_CALLER = "llmkit.caller"
"""Names the caller among the keys of the prefix cache; no plugin can have this name."""


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
    isolate_callers: bool = False
    """Requests of different callers share no cached prefix."""
    bounds: LimitsConfig = _BOUNDS

    @staticmethod
    def of(
        ready: EngineReady,
        model: FrontModel,
        seed: int,
        *,
        isolate_callers: bool = False,
        bounds: LimitsConfig = _BOUNDS,
    ) -> Limits:
        """Ends of sequence that the model has no row for cannot come and are left out."""
        ends = tuple(token_id for token_id in model.eos_ids if 0 <= token_id < ready.vocab_size)
        default_max_tokens = model.generation_defaults.get("max_tokens")
        return Limits(
            ready.max_model_len,
            ready.vocab_size,
            ends,
            default_max_tokens,
            seed,
            isolate_callers,
            bounds,
        )


@dataclass(frozen=True, slots=True)
class Attachments:
    """What goes with a request besides its prompt and parameters."""

    cache_keys: tuple[tuple[str, bytes], ...] = ()
    """Of ``prepare_request`` hooks."""
    plugin_data: dict[str, bytes] = field(default_factory=dict)
    """Of hooks and logits processors."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: CompiledGrammar | None = None
    thinking: Thinking | None = None


def truncated(prompt_ids: Sequence[int], params: SamplingParams, limits: Limits) -> Sequence[int]:
    """The prompt's end, as ``truncate_prompt_tokens`` has it; idempotent.

    :raises RequestError: it would keep more than the context holds.
    """
    most = params.truncate_prompt_tokens
    check_truncation(most)
    if most is None:
        return prompt_ids
    if most == -1:
        # What is no number of tokens is refused with the other parameters.
        answer = params.max_tokens if type(params.max_tokens) is int else 1
        return prompt_ids[-max(1, limits.max_model_len - max(0, answer)) :]
    if most > limits.max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens is {most}; this model's context holds {limits.max_model_len} tokens",
            param="truncate_prompt_tokens",
            code="integer_above_max_value",
        )
    return prompt_ids[-most:]


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str], vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Every way of tokenizing ``words`` at the start of a text and after a space.

    :raises RequestError: they are no list of texts.
    """
    texts("bad_words", words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)
    variants = (variant for word in words for variant in (word, " " + word.lstrip(" ")))
    found = (tuple(tokenizer.encode(variant, add_special_tokens=False)) for variant in variants)
    return tuple(dict.fromkeys(ids for ids in found if ids and max(ids) < vocab_size))


def make_requests(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    context: RequestContext,
    limits: Limits,
    attachments: Attachments,
) -> list[AddRequest]:
    """One request a sequence, with one prompt, one seed and ids of their own; of a beam search the first one.

    ``prompt_ids`` have passed ``check_prompt``. Request ids are made here: a client's would let two
    requests share a key.

    :raises RequestError: anything about the request is wrong.
    """
    check_params(params, limits.vocab_size, limits.bounds)
    check_salt(context.cache_salt)
    ids = list(truncated(prompt_ids, params, limits))
    default = context.default_max_tokens
    if default is None:
        default = limits.default_max_tokens
    max_tokens = resolve_max_tokens(len(ids), params.max_tokens, limits.max_model_len, default)
    eos_ids = () if params.ignore_eos else limits.eos_ids
    check_writable(attachments.thinking, eos_ids, limits.vocab_size)
    base = uuid.uuid4().hex
    first = AddRequest(
        request_id=f"{base}-0",
        prompt_ids=ids,
        params=_in_engine_terms(params, max_tokens, limits),
        seed=_seed(params, limits),
        max_tokens=max_tokens,
        eos_ids=eos_ids,
        priority=context.priority,
        arrival_s=time.time(),
        cache_salt=context.cache_salt,
        cache_keys=caller_keys(attachments, context, limits),
        plugin_data=attachments.plugin_data,
        caller=context.caller,
        bad_words=attachments.bad_words,
        grammar=attachments.grammar,
        thinking=attachments.thinking,
    )
    if params.beam_search is not None:
        return [first]
    return [first, *_followers(first, params.num_sequences, base)]


def caller_keys(
    attachments: Attachments, context: RequestContext, limits: Limits
) -> tuple[tuple[str, bytes], ...]:
    """What tells a request's prefixes from those of others: of hooks, and who asks where that counts."""
    if not limits.isolate_callers:
        return attachments.cache_keys
    return (*attachments.cache_keys, (_CALLER, context.caller.encode()))


def _followers(leader: AddRequest, choices: int, base: str) -> list[AddRequest]:
    """The other choices: the prompt, and so its logprobs, is the first one's to compute."""
    return [
        msgspec.structs.replace(
            leader,
            request_id=f"{base}-{choice}",
            choice=choice,
            leader=leader.request_id,
            params=params_of_choice(leader.params, choice),
        )
        for choice in range(1, choices)
    ]


def _in_engine_terms(params: SamplingParams, max_tokens: int, limits: Limits) -> SamplingParams:
    """The same request in numbers that fit the arrays of a batch, without what the front does for it."""
    logprobs = params.logprobs
    if logprobs is None and params.beam_search is None and params.num_sequences > params.n:
        logprobs = 0  # the front compares choices by them
    return msgspec.structs.replace(
        params,
        top_k=params.top_k if 0 <= params.top_k < limits.vocab_size else 0,
        min_tokens=min(params.min_tokens, max_tokens),
        temperature=min(params.temperature, _FLAT_TEMPERATURE),
        logprobs=logprobs,
        n=1,
        best_of=None,
        beam_search=None,
        stop=(),
        bad_words=(),
        structured=None,
        thinking_token_budget=None,
        plugin_args={},
        truncate_prompt_tokens=None,
    )


def _seed(params: SamplingParams, limits: Limits) -> int:
    """64 unsigned bits: the request's, the deployment's or a new one."""
    if params.seed is not None:
        return params.seed % (1 << 64)
    return limits.seed % (1 << 64) if limits.seed else secrets.randbits(64)
