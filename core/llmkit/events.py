"""What a client sees of one choice, as a stream of small events.

Every stage of the output pipeline maps pieces to events; a whole response is the fold of the same
events that a streamed response sends one by one. The host owns ids, indices, roles and the end.
"""

from __future__ import annotations

import msgspec

from llmkit.types import FinishReason


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of the vocabulary at one position: ``logprob`` is natural, of the raw distribution."""

    token_id: int
    logprob: float
    rank: int = 0
    """1 is the likeliest; 0 when it was not computed."""


class PositionLogprobs(msgspec.Struct, frozen=True):
    """Logprobs at one position: the token that is there, then the likeliest ones in order."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class Content(msgspec.Struct, frozen=True, tag="content"):
    """Text of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """Text of the model's thinking."""

    text: str


class ToolCallOpened(msgspec.Struct, frozen=True, tag="call"):
    """A call begins; the host gives it its id and index."""

    name: str


class ArgumentsDelta(msgspec.Struct, frozen=True, tag="arguments"):
    """A piece of the open call's JSON arguments."""

    text: str


class ToolCallClosed(msgspec.Struct, frozen=True, tag="closed"):
    """The open call is complete."""


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids behind the events of this step, with their logprobs where asked for.

    Sent by the host for every generated token exactly once, whether or not its text is held back.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()


class PromptLogprobs(msgspec.Struct, frozen=True, tag="prompt"):
    """Logprobs of the prompt, where asked for: sent once to each choice, before anything else of it.

    The first prompt token has none: ``positions`` begin with the second.
    """

    positions: tuple[PositionLogprobs, ...]


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The choice ended; always the last event and sent once.

    ``stop_reason`` is the stop string or the stop token id that ended it, None for the model's own
    end of sequence or another reason.
    """

    reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None
    error_code: str | None = None
    """A word for programs where ``error`` has one: ``request_timeout``, ``engine_dead``, or ``unsatisfiable``
    where the fault is the request's."""


Delta = Content | Reasoning | ToolCallOpened | ArgumentsDelta | ToolCallClosed
Event = Delta | Tokens | PromptLogprobs | Finished
