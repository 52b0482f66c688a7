"""The one writer of streams: events in, server-sent events out, in one grammar.

For each choice: an opening, pieces, one ending and nothing after it; then usage if asked, then
``[DONE]``. A failure is an ``error`` object and the end: no ending it did not have, no ``[DONE]``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
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
from llmkit_openai_api.answer import partial_usage_body
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

    def __init__(
        self,
        shape: AnswerShape,
        *,
        include_usage: bool,
        usage_so_far: Callable[[int, int], Usage] | None = None,
    ) -> None:
        """``usage_so_far``: of a choice with so many tokens, for every chunk; None: only the last has it."""
        self._shape = shape
        self._include_usage = include_usage
        self._usage_so_far = usage_so_far
        self._tokens: dict[int, Tokens] = {}
        """Choice -> tokens not sent yet; a choice is here from its opening on."""
        self._counts: dict[int, int] = {}
        """Choice -> its tokens so far."""
        self._moulds: dict[tuple[int, type[Shown]], _Mould] = {}
        """By choice and kind: chunks that differ in nothing but their text."""
        self._uniform = not shape.shows_tokens and usage_so_far is None

    def write(self, index: int, event: Event) -> bytes:
        """The frames of one event; may be empty, for text that is held back shows later."""
        if index not in self._tokens:
            self._tokens[index] = _NO_TOKENS
            prompt = event if isinstance(event, PromptLogprobs) else None
            return self._frame(index, self._shape.opening(index, prompt)) + self._written(index, event)
        return self._written(index, event)

    def end(self, usage: Usage) -> bytes:
        """After the last event."""
        return (_frame(self._shape.usage(usage)) if self._include_usage else b"") + DONE

    def _written(self, index: int, event: Event) -> bytes:
        match event:
            case Tokens():
                self._take(index, event)
            case Reasoning() if self._shape.hides_reasoning:
                """Its tokens go with what comes next."""
            case Content() | Reasoning() | ArgumentsDelta() if self._uniform:
                return self._moulded(index, event)
            case Content() | Reasoning() | ToolCallOpened() | ArgumentsDelta():
                self._moulds.pop((index, ArgumentsDelta), None)  # those were of the call before
                return self._piece(index, event)
            case Finished():
                rest = b""
                if self._tokens[index].token_ids and self._shape.shows_tokens:
                    rest = self._piece(index, Content(""))
                return rest + self._frame(index, self._shape.ending(index, event))
            case PromptLogprobs() | ToolCallClosed():
                """The opening has shown them; the next call or the end says so."""
        return b""

    def _piece(self, index: int, delta: Shown) -> bytes:
        tokens, self._tokens[index] = self._tokens[index], _NO_TOKENS
        return self._frame(index, self._shape.piece(index, delta, tokens))

    def _moulded(self, index: int, delta: Content | Reasoning | ArgumentsDelta) -> bytes:
        key = (index, type(delta))
        mould = self._moulds.get(key)
        if mould is None:
            sample = self._piece(index, type(delta)(_SAMPLE))
            mould = self._moulds[key] = _Mould(sample)
        return mould.cast(delta.text)

    def _take(self, index: int, tokens: Tokens) -> None:
        if self._uniform:
            return
        self._counts[index] = self._counts.get(index, 0) + len(tokens.token_ids)
        held = self._tokens[index]
        if held is not _NO_TOKENS:
            tokens = Tokens(held.token_ids + tokens.token_ids, held.logprobs + tokens.logprobs)
        self._tokens[index] = tokens

    def _frame(self, index: int, chunk: Envelope | None) -> bytes:
        if chunk is not None and self._usage_so_far is not None:
            usage = self._usage_so_far(index, self._counts.get(index, 0))
            chunk = msgspec.structs.replace(chunk, usage=partial_usage_body(usage))
        return _frame(chunk)


_NO_TOKENS = Tokens(())
_SAMPLE = "\ue000llmkit\ue000"
"""Stands for the text where a frame is cut; private characters, so that nothing else of a frame holds it."""


class _Mould:
    """A frame without its text, which may stand in it several times."""

    def __init__(self, sample: bytes) -> None:
        self._pieces = sample.split(msgspec.json.encode(_SAMPLE))

    def cast(self, text: str) -> bytes:
        """The frame with this text."""
        return _one_line(msgspec.json.encode(text)).join(self._pieces)


async def frames(choices: Choices, writer: StreamWriter) -> AsyncGenerator[bytes, None]:
    """A whole stream, in the pieces in which it is to be sent: what comes together goes together.

    Whoever asked for it closes ``choices``, even if it never began.
    """
    try:
        async for index, event in choices:
            written = writer.write(index, event)
            for index, event in choices.ready():
                written += writer.write(index, event)
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
