"""What every answer carries: id, time, model, fingerprint, usage."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import Any

import msgspec
from msgspec import UNSET

from llmkit import __version__
from llmkit.contracts import Finished, FinishReason, Services, Usage
from llmkit_openai_api.wire import (
    ChatChoice,
    ChatChunkChoice,
    CompletionChoice,
    CompletionDetails,
    Envelope,
    PromptDetails,
    UsageBody,
)


class Answer:
    """One answer's frame, the same in each of its chunks."""

    def __init__(self, services: Services, prefix: str, kind: str, name: str | None = None) -> None:
        """``name``: what the client calls the request; stands in the answer's id."""
        self.tokenizer = services.tokenizer
        self._id = f"{prefix}-{name or uuid.uuid4().hex}"
        self._kind = kind
        self._created = int(time.time())
        self._model = services.model.names[0]
        self._fingerprint = _fingerprint(services)

    def wrap(
        self,
        choices: list[ChatChunkChoice | ChatChoice | CompletionChoice],
        usage: Usage | None = None,
        **prompt: Any,
    ) -> Envelope:
        """One chunk, or all of a whole answer; ``prompt``: what was asked about it, as fields."""
        body = (self._id, self._kind, self._created, self._model, self._fingerprint, choices)
        if usage is None:
            return Envelope(*body, **prompt)
        return Envelope(*body, usage_body(usage), **prompt)


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptDetails(usage.cached_tokens),
        CompletionDetails(usage.reasoning_tokens),
    )


def partial_usage_body(usage: Usage) -> UsageBody:
    """Of a choice under way; nobody tells its reasoning from the rest yet."""
    return msgspec.structs.replace(usage_body(usage), completion_tokens_details=UNSET)


def finish_reason(finished: Finished) -> str:
    """In OpenAI's words; a choice that failed never gets here."""
    if finished.reason not in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS):
        raise ValueError(f"{finished.reason} is no reason a client may see")
    return finished.reason.value


def _fingerprint(services: Services) -> str:
    """Changes with the version of llmkit and with the model."""
    identity = f"{__version__} {services.model.root}".encode()
    return f"fp_{hashlib.blake2b(identity, digest_size=5).hexdigest()}"
