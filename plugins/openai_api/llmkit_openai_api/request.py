"""From an HTTP body to llmkit's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.requests import Request

from llmkit import RequestError
from llmkit.contracts import BeamSearch, LimitsConfig, RequestContext, SamplingParams, Services, listing
from llmkit_openai_api.schema import SamplingBody
from llmkit_openai_api.structured import structured_output

_SAMPLING = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "best_of",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "thinking_token_budget",
)
"""Fields with the same name and meaning in a body, in a generation config and in SamplingParams."""

TIMEOUT_HEADER = "x-request-timeout"


def not_yet(name: str) -> RequestError:
    return RequestError(
        f"{name} is not supported yet; leave it out", param=name, code="unsupported_parameter"
    )


def check_model(services: Services, name: str | None) -> None:
    """:raises RequestError: 404, no model of this name is served."""
    if name and name not in services.model.names:
        served = ", ".join(repr(known) for known in services.model.names)
        raise RequestError(
            f"the model {name[:200]!r} does not exist here; served: {served}",
            param="model",
            code="model_not_found",
            status=404,
        )


def check_sizes(limits: LimitsConfig, **lists: Sequence[Any] | None) -> None:
    """:raises RequestError: a list of the body is longer than its flag, ``--max-NAME``, allows."""
    for name, given in lists.items():
        most = getattr(limits, f"max_{name}")
        if given is not None and len(given) > most:
            raise RequestError(
                f"{name} has {len(given)} items; it may have at most {most} (--max-{name})",
                param=name,
                code="array_above_max_length",
            )


def sampling_params(
    body: SamplingBody, services: Services, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """What the request asks, over the model's own defaults, over llmkit's.

    :raises RequestError: ``logit_bias`` has a key that is no token id, what the answer must be is unclear, or
        token ids are asked for that would tell what an output stage takes out.
    """
    if body.return_token_ids and services.concealing_stage is not None:
        raise RequestError(
            "return_token_ids is not available here: output stage"
            f" {services.concealing_stage!r} takes things out of answers, and token ids would show them",
            param="return_token_ids",
            code="unsupported_parameter",
        )
    search = _beam_search(body)
    # A search does not sample: defaults for sampling do not concern it, and best_of said how many beams.
    defaults = services.generation_defaults if search is None else {}
    chosen: dict[str, Any] = {name: defaults[name] for name in _SAMPLING if defaults.get(name) is not None}
    for name in _SAMPLING:
        value = getattr(body, name)
        if value is not None and not (search is not None and name == "best_of"):
            chosen[name] = value
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return SamplingParams(
        **chosen,
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        bad_words=tuple(body.bad_words or ()),
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        beam_search=search,
        logit_bias=_by_token_id(body.logit_bias or {}),
        structured=structured_output(body)[1],
        plugin_args={**(body.vllm_xargs or {}), **(body.plugin_args or {})},
    )


def request_context(
    body: Queued, request: Request, *, default_max_tokens: int | None = None
) -> RequestContext:
    """The server has given every request an ``X-Request-Id``, and a caller where it asks for a key.

    :raises RequestError: ``X-Request-Timeout`` is no number.
    """
    return RequestContext(
        request_id=body.request_id or request.headers.get("x-request-id"),
        headers=dict(request.headers),
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        caller=getattr(request.state, "caller", ""),
        timeout_s=_timeout(request.headers.get(TIMEOUT_HEADER)),
        default_max_tokens=default_max_tokens,
    )


class Queued(Protocol):
    """What a body says of its place in the queue, the cache and the log."""

    cache_salt: str | None
    priority: int | None
    request_id: str | None


def check_stream(body: SamplingBody, params: SamplingParams) -> None:
    """:raises RequestError: the body wants a stream of what is known at the end only."""
    if not body.stream:
        return
    if params.beam_search is None and params.num_sequences > params.n:
        raise RequestError(
            f"best_of is {params.best_of}: which {params.n} of them are best is known when all have ended, so"
            " they cannot be streamed",
            param="best_of",
        )
    if body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs cannot be streamed; leave stream out", param="prompt_logprobs")


def name_field(error: RequestError, body: SamplingBody, **names: str) -> None:
    """Put in an error what the request calls the field that the front names; ``names``: the route's own."""
    masking = _masking(body) if error.code == "unsatisfiable" else []
    if masking:
        error.args = (f"{error}; this request has {listing(masking)}",)
        error.param = listing(masking)
        return
    if error.param is None:
        return
    name = names.get(error.param) or _field_of(body, error.param)
    error.args = (str(error).replace(error.param, name, 1),)
    error.param = name


class UsageAsked(NamedTuple):
    """Where a stream says what it used."""

    at_end: bool = False
    in_chunks: bool = False


def wants_usage(body: SamplingBody) -> UsageAsked:
    """:raises RequestError: stream options without a stream."""
    options = body.stream_options
    if options is None:
        return UsageAsked()
    if not body.stream:
        raise RequestError("stream_options is only allowed with stream true", param="stream_options")
    return UsageAsked(bool(options.include_usage), bool(options.continuous_usage_stats))


def _beam_search(body: SamplingBody) -> BeamSearch | None:
    """vLLM's: ``best_of``, or else ``n``, is the number of beams."""
    if body.use_beam_search:
        width = body.best_of if body.best_of is not None else body.n
        penalty = 1.0 if body.length_penalty is None else body.length_penalty
        return BeamSearch(1 if width is None else width, penalty, body.early_stopping or False)
    for name, nothing in (("length_penalty", 1.0), ("early_stopping", False)):
        if getattr(body, name) not in (None, nothing):
            raise RequestError(f"{name} needs use_beam_search true", param=name)
    return None


def _masking(body: SamplingBody) -> list[str]:
    """What in the body keeps tokens from being sampled."""
    names = ("allowed_token_ids", "bad_words", "min_tokens", "logit_bias", "thinking_token_budget")
    given = [name for name in names if getattr(body, name)]
    constrained = _field_of(body, "structured")
    return given if constrained == "structured" else [*given, constrained]


def _field_of(body: SamplingBody, front_name: str) -> str:
    """Where ``body`` says what the front calls ``front_name``."""
    match front_name:
        case "structured":
            field, _ = structured_output(body)
            # What the answer must be are calls, where nothing else was asked for.
            return "tools" if field == "structured" and getattr(body, "tools", None) else field
        case "beam_search.width":
            return "n" if body.best_of is None else "best_of"
        case "beam_search.length_penalty" | "beam_search.early_stopping":
            return front_name.removeprefix("beam_search.")
        case "prompt_logprobs" if body.prompt_logprobs is None and body.echo:
            return "echo"  # with logprobs it asks for those of the prompt
        case "timeout":
            return "X-Request-Timeout"
        case "plugin_args" if body.vllm_xargs and not body.plugin_args:
            return "vllm_xargs"
        case _:
            return front_name


def _timeout(header: str | None) -> float | None:
    """Its range is checked with the rest of the request."""
    if header is None:
        return None
    try:
        return float(header)
    except ValueError:
        raise RequestError(
            f"X-Request-Timeout is {header[:60]!r}; it must be a number of seconds", param="X-Request-Timeout"
        ) from None


def _by_token_id(bias: Mapping[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, value in bias.items():
        # int() alone would take " 5", "+5", "5_0" and digits of other scripts.
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
            raise RequestError(f"logit_bias: {key[:60]!r} is no token id", param="logit_bias")
        by_id[int(key)] = value
    return by_id
