"""Everything a request can get wrong, found before the engine sees it.

Each refusal is a RequestError that names the field, its value and the limit, with OpenAI's code for
the kind of fault. Ranges are OpenAI's, or vLLM's where OpenAI has no such field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from llmkit.errors import ContextLengthExceeded, RequestError
from llmkit.types import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_STRINGS, SamplingParams

MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_SALT_CHARS = 1024
MAX_PLUGIN_ARGS_BYTES = 64 << 10
"""Encoded, of all plugins together; every choice carries them."""
MAX_PLUGIN_ARGS_DEPTH = 32
POLICIES_WITHOUT_PRIORITY = frozenset({"fcfs"})
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-6, 1e6
"""Beyond these, logits of ordinary models overflow in single precision."""
_INT64 = 1 << 63
_UTF8_BYTES = 4
"""Most bytes of one character."""


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """Types and ranges of every field; ``vocab_size`` is the number of embedding rows.

    :raises RequestError: for the first field that is wrong.
    """
    check_choices(params.n)
    _integer("min_tokens", params.min_tokens, 0)
    if params.max_tokens is not None:
        _integer("max_tokens", params.max_tokens, 0)
        if params.min_tokens > params.max_tokens:
            raise RequestError(
                f"min_tokens is {params.min_tokens}; it may be at most max_tokens ({params.max_tokens})",
                param="min_tokens",
                code="invalid_value",
            )
    _number("temperature", params.temperature, 0)
    _number("top_p", params.top_p, 0, 1, open_below=True)
    _integer("top_k", params.top_k, -1)
    _number("min_p", params.min_p, 0, 1)
    _number("presence_penalty", params.presence_penalty, -2, 2)
    _number("frequency_penalty", params.frequency_penalty, -2, 2)
    _number("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    if params.seed is not None:
        _integer("seed", params.seed, -_INT64, _INT64 - 1)
    if params.logprobs is not None:
        _integer("logprobs", params.logprobs, 0, MAX_LOGPROBS)
    for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
        if not isinstance(getattr(params, name), bool):
            raise _wrong_type(name, getattr(params, name), "true or false")
    _stops(params.stop)
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size, MAX_STOP_TOKEN_IDS)
    _logit_bias(params.logit_bias, vocab_size)
    _plugin_args(params.plugin_args)


def check_choices(n: Any) -> None:
    """:raises RequestError: so many choices no request may have."""
    _integer("n", n, 1, MAX_CHOICES)


def check_text(name: str, text: str) -> None:
    """:raises RequestError: it holds half a surrogate pair, which no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} has a lone surrogate (\\u{ord(text[error.start]):04x}) at character {error.start};"
            " it must be valid Unicode",
            param=name,
            code="invalid_value",
        ) from None


def check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> None:
    """:raises RequestError: it is empty, or an id has no embedding row."""
    if not prompt_ids:
        raise RequestError(
            "prompt is empty; give at least one token (this tokenizer adds none by itself)",
            param="prompt",
            code="invalid_value",
        )
    check_token_ids("prompt", prompt_ids, vocab_size)


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


def check_token_ids(name: str, ids: Any, vocab_size: int, most: int | None = None) -> None:
    """:raises RequestError: ``ids`` is no list of at most ``most`` integers in the vocabulary."""
    # Whole-list tests first: a prompt may have a million ids.
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise _wrong_type(name, ids, "a list of token ids, which are integers")
    if not {*map(type, ids)} <= {int}:
        at = next(at for at, token_id in enumerate(ids) if type(token_id) is not int)
        raise _wrong_type(f"{name}[{at}]", ids[at], "a token id, which is an integer")
    if most is not None and len(ids) > most:
        raise RequestError(
            f"{name} has {len(ids)} ids; it may have at most {most}",
            param=name,
            code="array_above_max_length",
        )
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        at = next(at for at, token_id in enumerate(ids) if not 0 <= token_id < vocab_size)
        raise _unknown_id(f"{name}[{at}]", ids[at], vocab_size)


def check_priority(priority: Any, policy: str) -> None:
    """:raises RequestError: it is no 64 bit integer, or the policy looks at none."""
    _integer("priority", priority, -_INT64, _INT64 - 1)
    if priority and policy in POLICIES_WITHOUT_PRIORITY:
        raise RequestError(
            f"priority is {priority}; this server's scheduling policy {policy!r} looks at none. Leave it out,"
            " or start the server with a --scheduling-policy that does",
            param="priority",
            code="unsupported_parameter",
        )


def check_salt(cache_salt: Any) -> None:
    """:raises RequestError: it is no text of 1 to ``MAX_SALT_CHARS`` characters."""
    if cache_salt is None:
        return
    if not isinstance(cache_salt, str):
        raise _wrong_type("cache_salt", cache_salt, "a string")
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


# ---- one field ----


def _integer(name: str, value: Any, least: int, most: int = _INT64 - 1) -> None:
    if type(value) is not int:
        raise _wrong_type(name, value, "an integer")
    _bounds(name, value, "integer", least, most)


def _number(
    name: str, value: Any, least: float, most: float | None = None, *, open_below: bool = False
) -> None:
    if type(value) not in (int, float):
        raise _wrong_type(name, value, "a number")
    # An int is compared, not converted: it may be beyond every float.
    if abs(value) >= _INT64 if type(value) is int else not math.isfinite(value):
        raise RequestError(f"{name} is {_shown(value)}; it must be finite", param=name, code="invalid_value")
    _bounds(name, value, "decimal", least, most, open_below=open_below)


def _bounds(
    name: str, value: float, kind: str, least: float, most: float | None, *, open_below: bool = False
) -> None:
    if value < least or (open_below and value == least):
        need = f"above {least}" if open_below else f"at least {least}"
        raise RequestError(
            f"{name} is {_shown(value)}; it must be {need}", param=name, code=f"{kind}_below_min_value"
        )
    if most is not None and value > most:
        raise RequestError(
            f"{name} is {_shown(value)}; it may be at most {most}", param=name, code=f"{kind}_above_max_value"
        )


def _stops(stops: Any) -> None:
    if not isinstance(stops, (tuple, list)) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong_type("stop", stops, "a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop has {len(stops)} strings; it may have at most {MAX_STOP_STRINGS}",
            param="stop",
            code="array_above_max_length",
        )
    for stop in stops:
        check_text("stop", stop)
        if not stop:
            raise RequestError(
                "stop has an empty string; it would end every answer at once",
                param="stop",
                code="invalid_value",
            )
        if len(stop) > MAX_STOP_CHARS:
            raise RequestError(
                f"stop has a string of {len(stop)} characters; they may have at most {MAX_STOP_CHARS}",
                param="stop",
                code="string_above_max_length",
            )


def _logit_bias(bias: Any, vocab_size: int) -> None:
    if not isinstance(bias, dict):
        raise _wrong_type("logit_bias", bias, "an object from token ids to numbers")
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias has {len(bias)} entries; it may have at most {MAX_LOGIT_BIAS}",
            param="logit_bias",
            code="object_above_max_length",
        )
    for token_id, value in bias.items():
        if type(token_id) is not int:
            raise _wrong_type("logit_bias", token_id, "an object whose keys are token ids")
        if not 0 <= token_id < vocab_size:
            raise _unknown_id("logit_bias", token_id, vocab_size)
        try:
            _number("logit_bias", value, -100, 100)
        except RequestError as error:
            raise RequestError(f"{error} (token {token_id})", param=error.param, code=error.code) from None


def _plugin_args(args: Any) -> None:
    if not isinstance(args, dict):
        raise _wrong_type("plugin_args", args, "an object")
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


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _unknown_id(name: str, token_id: int, vocab_size: int) -> RequestError:
    return RequestError(
        f"{name} is token id {_shown(token_id)}; this model knows 0 to {vocab_size - 1}",
        param=name,
        code="invalid_value",
    )


def _wrong_type(name: str, value: Any, wanted: str) -> RequestError:
    return RequestError(f"{name} is {_shown(value)}; it must be {wanted}", param=name, code="invalid_type")


def _shown(value: Any, longest: int = 60) -> str:
    """A value for a message: of bounded length whatever a client sends."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}{_odd_one(value)}"
    text = repr(value[:longest] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= longest else text[:longest] + "..."


def _odd_one(values: Iterable[Any]) -> str:
    """The first item that is neither a string nor an int: most often the one that is wrong."""
    for value in values:
        if type(value) not in (str, int):
            return f" with a {type(value).__name__} in it"
    return ""
