"""From an answer's events to a response and to the events of its stream: one way for both."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from llmkit.contracts import Event, Finished, FinishReason, PositionLogprobs, Tokenizer, Usage
from llmkit_openai_api.logprobs import chat_logprobs
from llmkit_openai_api.parts import Closed, Grown, Kind, Opened, Parts, PartStep
from llmkit_openai_api.responses.wire import (
    RUNNING,
    ArgumentsDelta,
    ArgumentsDone,
    ErrorEvent,
    Failed,
    FunctionCall,
    Incomplete,
    InputDetails,
    ItemEvent,
    ItemStatus,
    Lifecycle,
    OutputDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseUsage,
    StreamEvent,
    TextDelta,
    TextDone,
)
from llmkit_openai_api.wire import TokenLogprobs


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


class ResponseWriter:
    """Owns one response: its items, its status and the numbers of its events.

    :meth:`begin`, then :meth:`feed` for each event of the one choice, then :meth:`finish`; or :meth:`fail` or
    :meth:`cancel` at any time after the first.
    """

    def __init__(self, response: Response, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        """``response`` as it begins: queued or in progress."""
        self.response = response
        self._tokenizer = tokenizer
        self._parts = Parts(tokenizer, with_logprobs=with_logprobs)
        self._sequence = 0
        self._output: list[OutputItem] = []
        self._item: _OpenItem | None = None
        self._finished: Finished | None = None

    @property
    def ended(self) -> bool:
        return self.response.status not in RUNNING

    def begin(self) -> list[StreamEvent]:
        events = [self._lifecycle("created")]
        if self.response.status == "queued":
            events.append(self._lifecycle("queued"))
            self.response = msgspec.structs.replace(self.response, status="in_progress")
        return [*events, self._lifecycle("in_progress")]

    def feed(self, event: Event) -> list[StreamEvent]:
        events = self._take(self._parts.feed(event))
        if isinstance(event, Finished):
            self._finished = event
        return events

    def finish(self, usage: Usage) -> list[StreamEvent]:
        """After the last event."""
        assert self._finished is not None, "the choice has not ended"
        cut = self._finished.reason is FinishReason.LENGTH
        events: list[StreamEvent] = []
        if not self._output:  # a response that says nothing says so in a message
            events = self._take([Opened("text"), Closed(complete=not cut)])
        self._end(
            status="incomplete" if cut else "completed",
            incomplete_details=Incomplete("max_output_tokens") if cut else None,
            completed_at=None if cut else int(time.time()),
            usage=_usage(usage),
        )
        return [*events, self._lifecycle("incomplete" if cut else "completed")]

    def fail(self, failed: Failed) -> list[StreamEvent]:
        """It ends without an answer; what came of it stays."""
        events = self._take(self._parts.close(complete=False))
        self._end(status="failed", error=failed)
        return [*events, self._lifecycle("failed")]

    def cancel(self) -> list[StreamEvent]:
        """Somebody wants no more of it."""
        events = self._take(self._parts.close(complete=False))
        self._end(status="cancelled")
        message = "the response was cancelled"
        return [*events, ErrorEvent("error", "response_cancelled", message, None, self._next())]

    # ---- below: how ----

    def _end(self, **fields: Any) -> None:
        self.response = msgspec.structs.replace(self.response, output=list(self._output), **fields)

    def _lifecycle(self, kind: str) -> StreamEvent:
        return Lifecycle(f"response.{kind}", self.response, self._next())

    def _next(self) -> int:
        number, self._sequence = self._sequence, self._sequence + 1
        return number

    def _take(self, steps: Sequence[PartStep]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for step in steps:
            match step:
                case Opened():
                    self._item = _OpenItem(step, len(self._output), self._next)
                    events += self._item.opened()
                case Grown() if self._item is not None:
                    events.append(self._item.grown(step.text, self._shown(step.logprobs)))
                case Closed() if self._item is not None:
                    item, closing = self._item.closed("completed" if step.complete else "incomplete")
                    self._output.append(item)
                    self._item = None
                    events += closing
        return events

    def _shown(self, logprobs: Sequence[PositionLogprobs]) -> list[TokenLogprobs]:
        if not logprobs:
            return []
        return chat_logprobs(self._tokenizer, logprobs, self._tokenizer.token_text).content


class _OpenItem:
    """The item under way."""

    def __init__(self, step: Opened, index: int, number: Callable[[], int]) -> None:
        self._kind: Kind = step.kind
        self._index = index
        self._number = number
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._item: OutputItem
        match step.kind:
            case "text":
                self._item = OutputMessage(new_id("msg"))
            case "reasoning":
                self._item = ReasoningItem(new_id("rs"))
            case "call":
                self._item = FunctionCall(new_id("fc"), new_id("call"), step.name)
        self._words = "response.output_text" if step.kind == "text" else "response.reasoning_text"

    def opened(self) -> list[StreamEvent]:
        added = ItemEvent("response.output_item.added", self._index, self._item, self._number())
        if self._kind == "call":
            return [added]
        return [added, self._part("added")]

    def grown(self, text: str, logprobs: list[TokenLogprobs]) -> StreamEvent:
        self._text.append(text)
        self._logprobs += logprobs
        if self._kind == "call":
            kind = "response.function_call_arguments.delta"
            return ArgumentsDelta(kind, self._item.id, self._index, text, self._number())
        event = TextDelta(f"{self._words}.delta", self._item.id, self._index, 0, text, self._number())
        return event if self._kind == "reasoning" else msgspec.structs.replace(event, logprobs=logprobs)

    def closed(self, status: ItemStatus) -> tuple[OutputItem, list[StreamEvent]]:
        """The whole item, and the events that say so."""
        item = self._whole(status)
        if isinstance(item, FunctionCall):
            kind = "response.function_call_arguments.done"
            done: list[StreamEvent] = [
                ArgumentsDone(kind, item.id, self._index, item.name, item.arguments, self._number())
            ]
        else:
            text = "".join(self._text)
            said = TextDone(f"{self._words}.done", item.id, self._index, 0, text, self._number())
            if self._kind == "text":
                said = msgspec.structs.replace(said, logprobs=self._logprobs)
            done = [said, self._part("done")]
        return item, [*done, ItemEvent("response.output_item.done", self._index, item, self._number())]

    def _whole(self, status: ItemStatus) -> OutputItem:
        match self._item:
            case FunctionCall():
                return msgspec.structs.replace(self._item, arguments="".join(self._text), status=status)
            case _:
                return msgspec.structs.replace(self._item, content=[self._content()], status=status)

    def _content(self) -> OutputText | ReasoningText:
        text = "".join(self._text)
        return OutputText(text, list(self._logprobs)) if self._kind == "text" else ReasoningText(text)

    def _part(self, kind: str) -> StreamEvent:
        part = self._content()
        return PartEvent(f"response.content_part.{kind}", self._item.id, self._index, 0, part, self._number())


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputDetails(usage.reasoning_tokens),
        usage.prompt_tokens + usage.completion_tokens,
    )
