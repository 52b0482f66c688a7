"""Everything a request can get wrong, found before the engine sees it.

Each refusal is a RequestError that names the field, its value and the limit, with OpenAI's code for
the kind of fault. Ranges are OpenAI's, or vLLM's where OpenAI has no such field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from llmkit.config import LimitsConfig
from llmkit.errors import ContextLengthExceeded, RequestError
from llmkit.frontend.fields import (
    INT64,
    check_text,
    check_token_ids,
    integer,
    number,
    set_by,
    shown,
    switch,
    texts,
    unknown_id,
    wrong_type,
)
from llmkit.text import listing
from llmkit.types import (
    BeamSearch,
    SamplingParams,
    StructuredKind,
    StructuredOutput,
)

MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_SALT_CHARS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_LENGTH_PENALTY = 10.0
MAX_TIMEOUT_S = 86_400
MAX_PLUGIN_ARGS_BYTES = 64 << 10
"""Encoded, of all plugins together; every choice carries them."""
MAX_PLUGIN_ARGS_DEPTH = 32
POLICIES_WITHOUT_PRIORITY = frozenset({"fcfs", "fair"})
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-6, 1e6
"""Beyond these, logits of ordinary models overflow in single precision."""
_UTF8_BYTES = 4
"""Most bytes of one character."""
_STRUCTURED_KINDS = get_args(StructuredKind)
_NOT_WITH_BEAMS = (
    "best_of",
    "prompt_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "stop",
    "structured",
    "thinking_token_budget",
    "plugin_args",
)
"""What beams would have to ignore. Temperature and truncation are about sampling, which a search is not."""
_SILENT = {name: getattr(SamplingParams(), name) for name in _NOT_WITH_BEAMS}


def check_params(params: SamplingParams, vocab_size: int, bounds: LimitsConfig) -> None:
    """Types and ranges of every field; ``vocab_size`` is the number of embedding rows.

    :raises RequestError: for the first field that is wrong, or that cannot go with another.
    """
    _sampling(params)
    _ends(params, vocab_size, bounds)
    _logprobs(params, bounds)
    check_truncation(params.truncate_prompt_tokens)
    for name in ("skip_special_tokens", "spaces_between_special_tokens"):
        switch(name, getattr(params, name))
    _logit_bias(params.logit_bias, vocab_size)
    texts("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)
    _allowed(params.allowed_token_ids, vocab_size)
    check_structured(params.structured, bounds)
    check_budget(params.thinking_token_budget)
    check_plugin_args(params.plugin_args)
    check_choices(params, bounds)
    _beams_fit(params, vocab_size)


def check_choices(params: SamplingParams, bounds: LimitsConfig) -> None:
    """:raises RequestError: ``n``, ``best_of`` or ``beam_search`` is wrong, or they do not fit each other."""
    integer("n", params.n, 1, bounds.max_n, flag="--max-n")
    if params.best_of is not None:
        integer("best_of", params.best_of, 1, bounds.max_best_of, flag="--max-best-of")
        if params.best_of < params.n:
            raise RequestError(
                f"best_of is {params.best_of}; it must be at least n ({params.n}), of which n return",
                param="best_of",
                code="invalid_value",
            )
    if params.beam_search is not None:
        _beam_search(params, params.beam_search, bounds)


def check_truncation(most: Any) -> None:
    """:raises RequestError: ``truncate_prompt_tokens`` is neither -1 nor a number of tokens to keep."""
    if most is not None:
        integer("truncate_prompt_tokens", most, -1)
        if most == 0:
            raise RequestError(
                "truncate_prompt_tokens is 0; it must be at least 1, or -1 for what the context holds",
                param="truncate_prompt_tokens",
                code="invalid_value",
            )


def check_budget(budget: Any) -> None:
    """:raises RequestError: ``thinking_token_budget`` is no number of tokens."""
    if budget is not None:
        integer("thinking_token_budget", budget, 0)


def check_structured(wanted: Any, bounds: LimitsConfig) -> None:
    """Its source is judged by whoever compiles it. :raises RequestError: it is no text of bearable length."""
    if wanted is None:
        return
    if not isinstance(wanted, StructuredOutput):
        raise wrong_type("structured", wanted, "a StructuredOutput")
    if wanted.kind not in _STRUCTURED_KINDS:
        raise RequestError(
            f"structured.kind is {shown(wanted.kind)}; it may be {listing(_STRUCTURED_KINDS)}",
            param="structured",
            code="invalid_value",
        )
    if not isinstance(wanted.source, str):
        raise wrong_type("structured", wanted.source, "text")
    check_text("structured", wanted.source)
    if len(wanted.source) > bounds.max_schema_chars:
        raise RequestError(
            f"structured has {len(wanted.source)} characters; it may have at most"
            f" {bounds.max_schema_chars}{set_by('--max-schema-chars')}",
            param="structured",
            code="string_above_max_length",
        )


def check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> None:
    """:raises RequestError: it is empty, or an id has no embedding row."""
    if not prompt_ids:
        raise RequestError(
            "prompt is empty; give at least one token (this tokenizer adds none by itself)",
            param="prompt",
            code="invalid_value",
        )
    check_token_ids("prompt", prompt_ids, vocab_size)


def check_prompt_chars(text: str, most: int | None) -> None:
    """:raises RequestError: ``text`` is longer than a deployment allows; None: it may be."""
    if most is not None and len(text) > most:
        raise RequestError(
            f"prompt has {len(text)} characters; it may have at most {most} (--max-prompt-chars)",
            param="prompt",
            code="string_above_max_length",
        )


def check_prompt_tokens(prompt_ids: Sequence[int], most: int | None) -> None:
    """:raises ContextLengthExceeded: the prompt is longer than a deployment allows; None: it may be."""
    if most is not None and len(prompt_ids) > most:
        raise ContextLengthExceeded(
            f"prompt has {len(prompt_ids)} tokens; it may have at most {most} (--max-prompt-tokens)",
            param="prompt",
        )


def check_fits(text: str, longest_token: int | None, max_model_len: int) -> None:
    """Before a prompt is tokenized: whether it may fit. ``longest_token`` as ``Tokenizer`` has it.

    :raises ContextLengthExceeded: it has more bytes than any ``max_model_len`` tokens stand for.
    """
    if longest_token is None or len(text) <= max_model_len * longest_token // _UTF8_BYTES:
        return
    size = len(text.encode())
    if size > max_model_len * longest_token:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens and the prompt has {size} bytes,"
            f" which are more than {size // longest_token} tokens; shorten it.",
            param="prompt",
        )


def check_plugin_args(args: Any) -> None:
    """:raises RequestError: it is no object of plain values, or too large or too deep a one."""
    if not isinstance(args, dict):
        raise wrong_type("plugin_args", args, "an object")
    if not args:
        return
    try:
        size = len(msgspec.msgpack.encode(args))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(
            f"plugin_args cannot be sent on: {error}; use objects, lists, strings, numbers and booleans",
            param="plugin_args",
            code="invalid_value",
        ) from None
    if size > MAX_PLUGIN_ARGS_BYTES:
        raise RequestError(
            f"plugin_args has {size} bytes; it may have at most {MAX_PLUGIN_ARGS_BYTES}",
            param="plugin_args",
            code="object_above_max_length",
        )
    level = [args]
    for _ in range(MAX_PLUGIN_ARGS_DEPTH):
        level = [item for holder in level for item in _items(holder)]
    if level:
        raise RequestError(
            f"plugin_args is nested more than {MAX_PLUGIN_ARGS_DEPTH} deep",
            param="plugin_args",
            code="invalid_value",
        )


def check_priority(priority: Any, policy: str) -> None:
    """:raises RequestError: it is no 64 bit integer, or the policy looks at none."""
    integer("priority", priority, -INT64, INT64 - 1)
    if priority and policy in POLICIES_WITHOUT_PRIORITY:
        raise RequestError(
            f"priority is {priority}; this server's scheduling policy {policy!r} looks at none. Leave it out,"
            " or start the server with a --scheduling-policy that does",
            param="priority",
            code="unsupported_parameter",
        )


def check_timeout(timeout_s: Any) -> None:
    """:raises RequestError: it is no number of seconds above 0."""
    if timeout_s is not None:
        number("timeout", timeout_s, 0, MAX_TIMEOUT_S, open_below=True)


def check_salt(cache_salt: Any) -> None:
    """:raises RequestError: it is no text of 1 to ``MAX_SALT_CHARS`` characters."""
    if cache_salt is None:
        return
    if not isinstance(cache_salt, str):
        raise wrong_type("cache_salt", cache_salt, "a string")
    check_text("cache_salt", cache_salt)
    if not 1 <= len(cache_salt) <= MAX_SALT_CHARS:
        raise RequestError(
            f"cache_salt has {len(cache_salt)} characters; it must have 1 to {MAX_SALT_CHARS}",
            param="cache_salt",
            code="invalid_value",
        )


def resolve_max_tokens(
    num_prompt: int, max_tokens: int | None, max_model_len: int, default: int | None = None
) -> int:
    """Tokens to generate at most, so that prompt and answer fit the context.

    ``default`` is the model's own wish where the request gives none; it is cut to what fits, as is the
    whole context without it. What a request asks for is never cut: it fits or is refused.

    :raises ContextLengthExceeded: prompt, or prompt and ``max_tokens``, are longer than the context.
    """
    room = max_model_len - num_prompt
    if room < (0 if max_tokens == 0 else 1):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens and the prompt has {num_prompt}"
            " tokens; shorten it so that at least one token can follow.",
            param="prompt",
        )
    if max_tokens is None:
        return room if default is None else min(default, room)
    if max_tokens > room:
        raise ContextLengthExceeded(
            f"max_tokens is too large: {max_tokens}. This model's maximum context length is {max_model_len}"
            f" tokens and the prompt has {num_prompt} tokens; at most {room} can follow.",
            param="max_tokens",
        )
    return max_tokens


# ---- groups of fields ----


def _sampling(params: SamplingParams) -> None:
    number("temperature", params.temperature, 0)
    number("top_p", params.top_p, 0, 1, open_below=True)
    integer("top_k", params.top_k, -1)
    number("min_p", params.min_p, 0, 1)
    number("presence_penalty", params.presence_penalty, -2, 2)
    number("frequency_penalty", params.frequency_penalty, -2, 2)
    number("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    if params.seed is not None:
        integer("seed", params.seed, -INT64, INT64 - 1)


def _ends(params: SamplingParams, vocab_size: int, bounds: LimitsConfig) -> None:
    integer("min_tokens", params.min_tokens, 0)
    if params.max_tokens is not None:
        integer("max_tokens", params.max_tokens, 0)
        if params.min_tokens > params.max_tokens:
            raise RequestError(
                f"min_tokens is {params.min_tokens}; it may be at most max_tokens ({params.max_tokens})",
                param="min_tokens",
                code="invalid_value",
            )
    for name in ("include_stop_str_in_output", "ignore_eos"):
        switch(name, getattr(params, name))
    texts("stop", params.stop, bounds.max_stop_strings, MAX_STOP_CHARS, flag="--max-stop-strings")
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size, MAX_STOP_TOKEN_IDS)


def _logprobs(params: SamplingParams, bounds: LimitsConfig) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            integer(name, getattr(params, name), 0, bounds.max_logprobs, flag="--max-logprobs")


def _beam_search(params: SamplingParams, search: Any, bounds: LimitsConfig) -> None:
    if not isinstance(search, BeamSearch):
        raise wrong_type("beam_search", search, "a BeamSearch")
    integer("beam_search.width", search.width, 1, bounds.max_best_of, flag="--max-best-of")
    number("beam_search.length_penalty", search.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
    if search.early_stopping != "never" and not isinstance(search.early_stopping, bool):
        raise wrong_type("beam_search.early_stopping", search.early_stopping, "true, false or 'never'")
    if params.n > search.width:
        raise RequestError(
            f"n is {params.n}; of {search.width} beams at most {search.width} can be returned",
            param="n",
            code="integer_above_max_value",
        )


def _beams_fit(params: SamplingParams, vocab_size: int) -> None:
    if params.beam_search is None:
        return
    if params.beam_search.width > vocab_size:
        raise RequestError(
            f"beam_search.width is {params.beam_search.width}; this model knows {vocab_size} tokens",
            param="beam_search.width",
            code="integer_above_max_value",
        )
    asked = next((name for name in _NOT_WITH_BEAMS if getattr(params, name) != _SILENT[name]), None)
    if asked is not None:
        raise RequestError(
            f"{asked} cannot be combined with beam search, which follows the model's own distribution; leave"
            " one of them out",
            param=asked,
            code="unsupported_parameter",
        )


# ---- one field ----


def _logit_bias(bias: Any, vocab_size: int) -> None:
    if not isinstance(bias, dict):
        raise wrong_type("logit_bias", bias, "an object from token ids to numbers")
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias has {len(bias)} entries; it may have at most {MAX_LOGIT_BIAS}",
            param="logit_bias",
            code="object_above_max_length",
        )
    for token_id, value in bias.items():
        if type(token_id) is not int:
            raise wrong_type("logit_bias", token_id, "an object whose keys are token ids")
        if not 0 <= token_id < vocab_size:
            raise unknown_id("logit_bias", token_id, vocab_size)
        try:
            number("logit_bias", value, -100, 100)
        except RequestError as error:
            raise RequestError(f"{error} (token {token_id})", param=error.param, code=error.code) from None


def _allowed(allowed: Any, vocab_size: int) -> None:
    if allowed is None:
        return
    check_token_ids("allowed_token_ids", allowed, vocab_size, vocab_size)
    if not allowed:
        raise RequestError(
            "allowed_token_ids is empty; nothing could be sampled",
            param="allowed_token_ids",
            code="invalid_value",
        )


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()
