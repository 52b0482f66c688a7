"""A checker of the grammar of ``/v1/messages`` streams, for tests of HTTP routes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llmkit.testing.events import named_events, need

STOP_REASONS = frozenset(
    {"end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"}
)
_DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


@dataclass(slots=True)
class StreamedMessage:
    """What a valid stream said."""

    message: dict[str, Any] | None = None
    """As put together from its pieces; None where it ended with an error."""
    error: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)


def validate_messages_stream(lines: Iterable[str]) -> StreamedMessage:
    """Check a stream of the Messages API, line by line as an HTTP client gives them.

    The grammar: frames of an ``event:`` line, a ``data:`` line and a blank one, the type in both. First
    ``message_start``; then blocks, one after the other: start, pieces of its kind, stop; a thinking block has
    its signature last; then one ``message_delta`` with why it stopped and the usage, and ``message_stop``;
    ``ping`` anywhere behind the first. Or an ``error`` with a type, a message and the request's id, last.

    :raises StreamError: the first event that breaks it.
    """
    answer, grammar = StreamedMessage(), _Grammar()
    for name, event, line in named_events(lines):
        need(event["type"] == name, "the event's name is its type", line)
        grammar.read(name, event, answer, line)
        answer.events.append(event)
    need(answer.message is not None or answer.error is not None, "a stream has an end", "")
    return answer


class _Grammar:
    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._block: dict[str, Any] | None = None
        self._pieces: list[tuple[str, str]] = []
        """(field, text) of the open block."""
        self._over = False

    def read(self, name: str, event: dict[str, Any], answer: StreamedMessage, line: str) -> None:
        need(not self._over, "nothing follows the end", line)
        if name == "error":
            need(event["error"].keys() == {"type", "message"}, "an error has a type and a message", line)
            need(bool(event.get("request_id")), "an error names the request", line)
            answer.error, self._over = event["error"], True
            return
        if name == "message_start":
            need(self._message is None, "a message starts once", line)
            self._message = event["message"]
            empty = self._message["content"] == [] and self._message["stop_reason"] is None
            need(empty and self._message["role"] == "assistant", "it starts empty", line)
            return
        need(self._message is not None, "a message starts first", line)
        assert self._message is not None
        if name == "message_stop":
            need(self._message["stop_reason"] is not None, "message_delta comes before the stop", line)
            answer.message, self._over = self._message, True
        elif name != "ping":
            need(self._message["stop_reason"] is None, "nothing but the stop follows message_delta", line)
            self._within(name, event, self._message, line)

    def _within(self, name: str, event: dict[str, Any], message: dict[str, Any], line: str) -> None:
        if name == "message_delta":
            need(self._block is None, "all blocks have stopped", line)
            need(event["delta"]["stop_reason"] in STOP_REASONS, "a stop_reason of Anthropic's", line)
            stopped = event["delta"]["stop_reason"] == "stop_sequence"
            need((event["delta"]["stop_sequence"] is not None) == stopped, "which sequence stopped it", line)
            message |= {**event["delta"], "usage": event["usage"]}
            return
        need(event["index"] == len(message["content"]), "blocks follow each other", line)
        if name == "content_block_start":
            need(self._block is None, "one block at a time", line)
            self._block, self._pieces = event["content_block"], []
            need(self._block["type"] in _DELTAS, "a kind of block that answers have", line)
            return
        need(self._block is not None, "a block starts first", line)
        assert self._block is not None
        if name == "content_block_delta":
            fields = _DELTAS[self._block["type"]]
            kind = event["delta"]["type"]
            need(kind in fields, "a piece of the block's kind", line)
            need("signature" not in [name for name, _ in self._pieces], "the signature is last", line)
            self._pieces.append((fields[kind], event["delta"][fields[kind]]))
            return
        need(name == "content_block_stop", "an event of the Messages API", line)
        message["content"].append(self._whole(self._block, line))
        self._block = None

    def _whole(self, block: dict[str, Any], line: str) -> dict[str, Any]:
        said: dict[str, str] = {}
        for name, text in self._pieces:
            said[name] = said.get(name, "") + text
        if block["type"] != "tool_use":
            need(block["type"] == "text" or bool(said.get("signature")), "thinking has a signature", line)
            return {**block, **said}
        try:
            given = json.loads(said.get("partial_json") or "{}")
        except ValueError:
            given = {}  # it was cut off
        return {**block, "input": given if isinstance(given, dict) else {}}
