"""What one request, and one client, may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.config.fields import option, parse_count, parse_size
from llmkit.types import MAX_CHOICES, MAX_GRAMMAR_CHARS, MAX_LOGPROBS, MAX_STOP_STRINGS


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Bounds that an operator may move; a request beyond one is refused with the flag's name."""

    max_request_bytes: int = option(
        16 << 20, "largest request body", parse=parse_size, minimum=1024, maximum=1 << 30
    )
    max_concurrent_requests_per_key: int | None = option(
        None,
        "most HTTP requests that one API key, or where there are no keys one client address, may have in "
        "flight; beyond it its client gets 429; default: as many as it likes",
        minimum=1,
        maximum=1 << 20,
    )
    max_messages: int = option(8192, "most messages of a conversation", minimum=1, maximum=8192)
    max_prompts: int = option(1024, "most prompts of one request", minimum=1, maximum=4096)
    max_prompt_chars: int | None = option(
        None,
        "most characters of a prompt, the chat template's own included; default: what the context can hold",
        parse=parse_count,
        minimum=1,
        maximum=1 << 40,
    )
    max_prompt_tokens: int | None = option(
        None,
        "most tokens of a prompt; default: what the context holds",
        parse=parse_count,
        minimum=1,
        maximum=1 << 40,
    )
    max_n: int = option(MAX_CHOICES, "largest n of a request", minimum=1, maximum=4096)
    max_best_of: int = option(
        MAX_CHOICES, "largest best_of of a request, or width of a beam search", minimum=1, maximum=4096
    )
    max_logprobs: int = option(
        MAX_LOGPROBS,
        "most logprobs, top_logprobs or prompt_logprobs a token",
        synonyms={"-1": "1024"},  # vLLM's word for no bound
        minimum=0,
        maximum=1024,
    )
    max_stop_strings: int = option(
        MAX_STOP_STRINGS, "most stop strings of a request", minimum=0, maximum=4096
    )
    max_tools: int = option(128, "most tools of a request", minimum=0, maximum=4096)
    max_schema_chars: int = option(
        MAX_GRAMMAR_CHARS,
        "most characters of a JSON schema, grammar or whatever else says what an answer must be",
        parse=parse_count,
        minimum=1,
        maximum=1 << 24,
    )
