"""Server-sent events with a name, as the Responses and the Messages API have them."""

from __future__ import annotations

from typing import Any

import msgspec

_LINE_ENDS = tuple((mark.encode(), f"\\u{ord(mark):04x}".encode()) for mark in "\x85\u2028\u2029")
"""Line ends to some clients, though not to JSON nor to the event stream's own grammar."""


def named_frame(name: str, body: Any) -> bytes:
    """One event; ``body`` becomes JSON."""
    data = msgspec.json.encode(body)
    if not data.isascii():
        for mark, escaped in _LINE_ENDS:
            data = data.replace(mark, escaped)
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
