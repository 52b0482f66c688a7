"""The one writer of streams: events in, server-sent events out, in one grammar.

For each choice: an opening, pieces, one ending and nothing after it; then usage if asked, then
``[DONE]``. A failure is an ``error`` object and the end: no ending it did not have, no ``[DONE]``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from llmkit import Draining, EngineDead, EngineError, RequestError, RequestTimeout
from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Event,
    Finished,
    FoldedChoice,
    PromptLogprobs,
    Reasoning,
    Tokens,
    ToolCallClosed,
    ToolCallOpened,
    Usage,
)
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.wire import Envelope

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
Shown = Content | Reasoning | ToolCallOpened | ArgumentsDelta
"""What is worth a chunk."""


class AnswerShape(Protocol):
    """How one route words its answers: the chunks of a stream, or a whole one."""

    shows_tokens: bool
    """Tokens are worth a chunk without text: their ids or logprobs are shown."""
    hides_reasoning: bool

    def opening(self, index: int, prompt: PromptLogprobs | None) -> Envelope | None:
        """Before anything else of a choice; with the prompt's logprobs where they were asked for."""

    def piece(self, index: int, delta: Shown, tokens: Tokens) -> Envelope:
        """A piece of the answer and the tokens since the last one."""

    def ending(self, index: int, finished: Finished) -> Envelope:
        """The last of a choice: why it ended and nothing else."""

    def usage(self, usage: Usage) -> Envelope:
        """After all choices."""

    def whole(self, folded: Sequence[FoldedChoice], usage: Usage) -> Envelope:
        """All choices at once, by index."""


class StreamWriter:
    """Owns the grammar of one stream."""

    def __init__(self, shape: AnswerShape, *, include_usage: bool) -> None:
        self._shape = shape
        self._include_usage = include_usage
        self._tokens: dict[int, Tokens] = {}
        """Choice -> tokens not sent yet; a choice is here from its opening on."""

    def write(self, index: int, event: Event) -> bytes:
        """The frames of one event; may be empty, for text that is held back shows later."""
        frames = b""
        if index not in self._tokens:
            self._tokens[index] = _NO_TOKENS
            prompt = event if isinstance(event, PromptLogprobs) else None
            frames = _frame(self._shape.opening(index, prompt))
        match event:
            case PromptLogprobs():
                """The opening has shown them."""
            case Tokens():
                self._take(index, event)
            case Reasoning() if self._shape.hides_reasoning:
                """Its tokens go with what comes next."""
            case Content() | Reasoning() | ToolCallOpened() | ArgumentsDelta():
                frames += self._piece(index, event)
            case ToolCallClosed():
                """The next call or the end says so."""
            case Finished():
                if self._tokens[index].token_ids and self._shape.shows_tokens:
                    frames += self._piece(index, Content(""))
                frames += _frame(self._shape.ending(index, event))
        return frames

    def end(self, usage: Usage) -> bytes:
        """After the last event."""
        return (_frame(self._shape.usage(usage)) if self._include_usage else b"") + DONE

    def _piece(self, index: int, delta: Shown) -> bytes:
        tokens, self._tokens[index] = self._tokens[index], _NO_TOKENS
        return _frame(self._shape.piece(index, delta, tokens))

    def _take(self, index: int, tokens: Tokens) -> None:
        held = self._tokens[index]
        if held is not _NO_TOKENS:
            tokens = Tokens(held.token_ids + tokens.token_ids, held.logprobs + tokens.logprobs)
        self._tokens[index] = tokens


_NO_TOKENS = Tokens(())


async def frames(choices: Choices, writer: StreamWriter) -> AsyncGenerator[bytes, None]:
    """A whole stream. Whoever asked for it closes ``choices``, even if it never began."""
    try:
        async for index, event in choices:
            written = writer.write(index, event)
            if written:
                yield written
        yield writer.end(choices.usage)
    except RequestError as error:  # found out while it ran
        yield _error_frame(str(error), error.code, "invalid_request_error")
    except EngineError as error:
        yield _error_frame(str(error), _code(error))
    except Exception:  # our own fault or a plugin's: the client is told, in the stream it has
        logger.exception("a stream failed")
        yield _error_frame("the server failed on this request; its log says why", None)


def _frame(chunk: Envelope | None) -> bytes:
    return b"" if chunk is None else b"data: " + _one_line(msgspec.json.encode(chunk)) + b"\n\n"


_LINE_ENDS = tuple((mark.encode(), f"\\u{ord(mark):04x}".encode()) for mark in "\x85\u2028\u2029")
"""Line ends to some clients, though not to JSON nor to the event stream's own grammar."""


def _one_line(data: bytes) -> bytes:
    if data.isascii():
        return data
    for mark, escaped in _LINE_ENDS:
        data = data.replace(mark, escaped)
    return data


def _error_frame(message: str, code: str | None, kind: str = "server_error") -> bytes:
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return b"data: " + _one_line(msgspec.json.encode(body)) + b"\n\n"


def _code(error: EngineError) -> str:
    match error:
        case EngineDead():
            return "engine_dead"
        case Draining():
            return "draining"
        case RequestTimeout():
            return "request_timeout"
        case _:
            return "engine_error"
