"""From an answer's events to a message and to the events of its stream: one way for both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from llmkit.contracts import Event, Finished, FinishReason, Tokenizer, Usage
from llmkit_openai_api.messages.wire import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    End,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopReason,
    StreamEvent,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    TokenDetails,
    ToolUse,
)
from llmkit_openai_api.parts import Closed, Grown, Opened, Parts, PartStep
from llmkit_openai_api.responses.writer import new_id


class MessageWriter:
    """Owns one message: :meth:`begin`, :meth:`feed` for each event, :meth:`finish`."""

    def __init__(self, model: str, tokenizer: Tokenizer, *, max_tokens: int, shows_thinking: bool) -> None:
        self._parts = Parts(tokenizer, with_logprobs=False)
        self._max_tokens = max_tokens
        self._shows_thinking = shows_thinking
        self._model = model
        self._id = new_id("msg")
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._text: list[str] = []
        """Of the open block."""
        self._finished: Finished | None = None

    def begin(self, usage: Usage) -> list[StreamEvent]:
        return [MessageStart(Message(self._id, self._model, [], _usage(usage))), Ping()]

    def feed(self, event: Event) -> list[StreamEvent]:
        if isinstance(event, Finished):
            self._finished = event
        return [written for step in self._parts.feed(event) for written in self._take(step)]

    def finish(self, usage: Usage) -> list[StreamEvent]:
        """After the last event."""
        end = self._end(usage)
        return [MessageDelta(end, _usage(usage)), MessageStop()]

    def message(self, usage: Usage) -> Message:
        """The whole of it, after the last event."""
        end = self._end(usage)
        return Message(self._id, self._model, self._blocks, _usage(usage), end.stop_reason, end.stop_sequence)

    # ---- below: how ----

    def _take(self, step: PartStep) -> Sequence[StreamEvent]:
        index = len(self._blocks)
        match step:
            case Opened():
                self._open, self._text = _opened(step), []
                return [BlockStart(index, self._open)]
            case Grown():
                self._text.append(step.text)
                return self._grown(index, step.text)
            case Closed():
                return self._closed(index)

    def _grown(self, index: int, text: str) -> Sequence[StreamEvent]:
        match self._open:
            case Text():
                return [BlockDelta(index, TextDelta(text))]
            case Thinking():
                return [BlockDelta(index, ThinkingDelta(text))] if self._shows_thinking else []
            case _:
                return [BlockDelta(index, InputDelta(text))]

    def _closed(self, index: int) -> Sequence[StreamEvent]:
        text = "".join(self._text)
        events: list[StreamEvent] = []
        match self._open:
            case Text():
                block: Block = Text(text)
            case Thinking():
                block = Thinking(text if self._shows_thinking else "", _signature(text))
                events.append(BlockDelta(index, SignatureDelta(block.signature)))
            case call:
                assert call is not None, "a block is open"
                block = msgspec.structs.replace(call, input=_input(text))
        self._blocks.append(block)
        self._open = None
        return [*events, BlockStop(index)]

    def _end(self, usage: Usage) -> End:
        assert self._finished is not None, "the choice has not ended"
        reason, stopped = self._finished.reason, self._finished.stop_reason
        if reason is FinishReason.LENGTH:
            full = usage.completion_tokens < self._max_tokens
            return End("model_context_window_exceeded" if full else "max_tokens", None)
        if isinstance(stopped, str):
            return End("stop_sequence", stopped)
        called = any(isinstance(block, ToolUse) for block in self._blocks)
        natural: StopReason = "tool_use" if called else "end_turn"
        return End(natural, None)


def _opened(step: Opened) -> Block:
    match step.kind:
        case "text":
            return Text()
        case "reasoning":
            return Thinking()
        case "call":
            return ToolUse(new_id("toolu"), step.name)


def _input(arguments: str) -> dict[str, Any]:
    """An object, as the API has it: of a call that was cut off it is empty."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _signature(thinking: str) -> str:
    """Something to send back; nobody here looks at it."""
    return hashlib.blake2b(thinking.encode(errors="replace"), digest_size=32).hexdigest()


def _usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        usage.prompt_tokens - usage.cached_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        TokenDetails(usage.reasoning_tokens),
    )
