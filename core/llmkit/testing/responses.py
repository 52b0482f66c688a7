"""A checker of the grammar of ``/v1/responses`` streams, for tests of HTTP routes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llmkit.testing.events import named_events, need

_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
_TEXTS = {"output_text": "text", "reasoning_text": "text", "function_call_arguments": "arguments"}


@dataclass(slots=True)
class StreamedResponse:
    """What a valid stream said."""

    response: dict[str, Any] | None = None
    """As its last event has it; None where it ended with an error."""
    error: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of all messages, put together from their pieces."""
        pieces = (event for event in self.events if event["type"] == "response.output_text.delta")
        return "".join(event["delta"] for event in pieces)


def validate_responses_stream(lines: Iterable[str], *, after: int = -1) -> StreamedResponse:
    """Check a stream of the Responses API, line by line as an HTTP client gives them.

    The grammar: frames of an ``event:`` line, a ``data:`` line and a blank one, the type in both;
    ``sequence_number`` counts from ``after + 1``. ``response.created``, ``response.queued`` if it was queued,
    ``response.in_progress``; then items, one after the other: added, its one part added (not of a call),
    pieces, the text or the arguments whole, the part, the item; then the response's end, whose output is the
    items as they were done. An ``error`` may end it at any time.

    :raises StreamError: the first event that breaks it.
    """
    answer, grammar = StreamedResponse(), _Grammar(after)
    for name, event, line in named_events(lines):
        grammar.read(name, event, answer, line)
        answer.events.append(event)
    need(answer.response is not None or answer.error is not None, "a stream has an end", "")
    return answer


class _Grammar:
    def __init__(self, after: int) -> None:
        self._number = after
        self._partial = after >= 0
        """The beginning was left out: items that are open may be unknown."""
        self._begun: list[str] = []
        self._items: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._id: str | None = None
        self._over = False

    def read(self, name: str, event: dict[str, Any], answer: StreamedResponse, line: str) -> None:
        need(not self._over, "nothing follows the end", line)
        need(event["type"] == name, "the event's name is its type", line)
        self._number += 1
        need(event["sequence_number"] == self._number, f"sequence_number is {self._number}", line)
        if name == "error":
            need(event.keys() >= {"code", "message", "param"}, "an error has a code and a message", line)
            answer.error, self._over = event, True
        elif "response" in event:
            self._lifecycle(name, event["response"], answer, line)
        elif not self._partial:
            need(self._begun[-1:] == ["response.in_progress"], "items come while it is in progress", line)
            self._item(name, event, line)

    def _lifecycle(self, name: str, response: dict[str, Any], answer: StreamedResponse, line: str) -> None:
        need(self._id in (None, response["id"]), "one response has one id", line)
        self._id = response["id"]
        if name in _ENDS:
            need(response["status"] == _ENDS[name], "the status is the event's", line)
            need((response["error"] is not None) == (name == "response.failed"), "an error if failed", line)
            cut = response["incomplete_details"] is not None
            need(cut == (name == "response.incomplete"), "incomplete_details if incomplete", line)
            need((response["usage"] is None) == (name == "response.failed"), "usage unless failed", line)
            need(self._open is None, "all items are done", line)
            if not self._partial:
                need(response["output"] == self._items, "the output is the items that were done", line)
            answer.response, self._over = response, True
            return
        before = {"response.created": [], "response.queued": ["response.created"]}
        earlier = before.get(name, self._begun)
        need(self._begun == earlier and name not in self._begun, "created, queued, in_progress", line)
        need(response["output"] == [] and response["usage"] is None, "nothing is there yet", line)
        queued = name == "response.queued" or (name == "response.created" and response["background"])
        need(response["status"] == ("queued" if queued else "in_progress"), "its status", line)
        self._begun.append(name)

    def _item(self, name: str, event: dict[str, Any], line: str) -> None:
        need(event["output_index"] == len(self._items), "items follow each other", line)
        if name == "response.output_item.added":
            need(self._open is None, "one item at a time", line)
            self._open = _Item(event["item"], line)
            return
        item = self._open
        need(item is not None, "an item is added first", line)
        assert item is not None
        if name == "response.output_item.done":
            item.done(event["item"], line)
            self._items.append(event["item"])
            self._open = None
            return
        item.part(name.removeprefix("response."), event, line)


class _Item:
    """The item under way."""

    def __init__(self, added: dict[str, Any], line: str) -> None:
        need(added["status"] == "in_progress", "an item begins in progress", line)
        self._added = added
        self._kind = {
            "message": "output_text",
            "reasoning": "reasoning_text",
            "function_call": "function_call_arguments",
        }.get(added["type"], "")
        need(bool(self._kind), "a message, a reasoning or a function_call", line)
        self._text = ""
        self._logprobs: list[Any] = []
        self._steps: list[str] = []

    def part(self, name: str, event: dict[str, Any], line: str) -> None:
        need(event["item_id"] == self._added["id"], "the id of its item", line)
        call = self._kind == "function_call_arguments"
        field_name = _TEXTS[self._kind]
        if name == f"{self._kind}.delta":
            need(self._steps == ([] if call else ["added"]), "pieces come within a part", line)
            need(event["delta"] != "", "a piece has text", line)
            self._text += event["delta"]
            self._logprobs += event.get("logprobs", [])
        elif name == f"{self._kind}.done":
            need(self._steps == ([] if call else ["added"]), "the whole text comes once", line)
            need(event[field_name] == self._text, "the whole text is its pieces", line)
            need(event.get("logprobs", []) == self._logprobs, "logprobs are those of the pieces", line)
            self._steps.append("said")
        elif name == "content_part.added":
            need(not call and self._steps == [], "a part begins once", line)
            need(event["part"]["type"] == self._kind and event["part"]["text"] == "", "it is empty", line)
            self._steps.append("added")
        else:
            need(name == "content_part.done" and not call, "an event of this kind of item", line)
            need(self._steps == ["added", "said"], "a part ends behind its text", line)
            self._check(event["part"], line)
            self._steps.append("done")

    def done(self, item: dict[str, Any], line: str) -> None:
        same = {key: value for key, value in item.items() if key not in ("status", "content", "arguments")}
        need(same.items() <= self._added.items(), "what was said of it stays", line)
        need(item["status"] in ("completed", "incomplete"), "an item ends", line)
        if self._kind == "function_call_arguments":
            need(self._steps == ["said"], "its arguments were said", line)
            need(item["arguments"] == self._text, "its arguments are the pieces", line)
            return
        need(self._steps == ["added", "said", "done"], "its part is done", line)
        (part,) = item["content"]
        self._check(part, line)

    def _check(self, part: dict[str, Any], line: str) -> None:
        need(part["type"] == self._kind and part["text"] == self._text, "a part is its pieces", line)
        need(part.get("logprobs", []) == self._logprobs, "logprobs are those of the pieces", line)
