"""Counts, times and sizes of requests that ended."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from llmkit.contracts import FinishReason, RequestRecord
from llmkit_observability.engine import TOKEN_SECONDS
from llmkit_observability.instruments import Counters, Histogram, Labels

_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560),
)
_TOKENS = (*(step * 10**power for power in range(6) for step in (1, 2, 5)), 1_000_000)
_CHOICES = (1, 2, 5, 10, 20, 50, 100)


class RequestMetrics:
    """Owns them; a request is looked at once, when it has ended."""

    def __init__(self) -> None:
        self._ended = Counters("request_success", "Choices that ended, by reason.", ["finished_reason"])
        for reason in FinishReason:
            self._ended.add(reason.value, count=0)

        def seconds(name: str, help: str) -> Histogram:
            return Histogram(f"{name}_seconds", help, _SECONDS)

        self._first_token = seconds("time_to_first_token", "From a request's arrival to its first token.")
        self._whole = seconds("e2e_request_latency", "From a request's arrival to its end.")
        self._queue = seconds("request_queue_time", "From a request's arrival to its first step.")
        self._prefill = seconds("request_prefill_time", "From a request's first step to its first token.")
        self._decode = seconds("request_decode_time", "From a request's first token to its end.")
        self._inference = seconds("request_inference_time", "From a request's first step to its end.")
        self._per_token = Histogram(
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a request, after its first.",
            TOKEN_SECONDS,
        )
        self._per_token_old = Histogram(
            "time_per_output_token_seconds",
            "request_time_per_output_token_seconds under its older name.",
            TOKEN_SECONDS,
        )
        self._prompt = Histogram("request_prompt_tokens", "Tokens of a request's prompt.", _TOKENS)
        self._generated = Histogram(
            "request_generation_tokens", "Tokens generated for a request, all choices together.", _TOKENS
        )
        self._longest = Histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest choice.", _TOKENS
        )
        self._choices = Histogram("request_params_n", "Choices that a request asks for.", _CHOICES)
        self._most = Histogram(
            "request_params_max_tokens", "Most tokens that a choice of a request could have.", _TOKENS
        )

    def ended(self, record: RequestRecord) -> None:
        for reason in record.reasons:
            self._ended.add(reason.value)
        usage = record.usage
        self._whole.add(record.ended_s - record.arrived_s)
        self._prompt.add(usage.prompt_tokens)
        self._generated.add(usage.completion_tokens)
        self._longest.add(record.longest)
        self._choices.add(len(record.reasons))
        self._most.add(record.max_tokens)
        if record.scheduled_s is not None:
            self._queue.add(record.scheduled_s - record.arrived_s)
            self._inference.add(record.ended_s - record.scheduled_s)
        if record.first_token_s is None:
            return
        self._first_token.add(record.first_token_s - record.arrived_s)
        self._decode.add(record.ended_s - record.first_token_s)
        if record.scheduled_s is not None:
            self._prefill.add(record.first_token_s - record.scheduled_s)
        later = usage.completion_tokens / len(record.reasons) - 1
        if later > 0:
            mean_s = (record.ended_s - record.first_token_s) / later
            self._per_token.add(mean_s)
            self._per_token_old.add(mean_s)

    def collect(self, prefix: str, labels: Labels) -> Iterator[Metric]:
        for instrument in vars(self).values():
            yield instrument.family(prefix, labels)
