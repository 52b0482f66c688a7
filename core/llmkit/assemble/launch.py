"""What the front hands to the processes it starts, through their standard input.

A message is eight bytes of length, big-endian, then msgpack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import msgspec

from llmkit.config import Config
from llmkit.contracts.weights import CheckpointInfo, ModelFiles
from llmkit.errors import EngineError

MAX_LAUNCH_BYTES = 64 << 20
_LENGTH_BYTES = 8

Read = Callable[[int], bytes]
"""At most so many bytes; none at the end."""


class EngineLaunch(msgspec.Struct, frozen=True):
    """All that an engine process is started with."""

    config: Config
    files: ModelFiles
    info: CheckpointInfo
    uds: str | None = None
    """The Unix socket that the front serves; removed by the engine if the front dies."""


def write_launch(stream: BinaryIO, launch: EngineLaunch) -> None:
    """Keep the stream open: its end means the front died."""
    payload = msgspec.msgpack.encode(launch)
    stream.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    stream.flush()


def read_launch(stream: BinaryIO) -> EngineLaunch:
    """:raises EngineError: the stream ended early or holds something else."""
    payload = read_message(stream.read, MAX_LAUNCH_BYTES, "launch")
    try:
        return msgspec.msgpack.decode(payload, type=EngineLaunch)
    except msgspec.DecodeError as error:
        raise EngineError(f"the launch cannot be read: {error}") from None


def read_message(read: Read, most: int, name: str) -> bytes:
    """What is in a message of ``most`` bytes at most.

    :raises EngineError: it is longer, or the input ended early; ``name`` is what this calls it.
    """
    length = int.from_bytes(_exactly(read, _LENGTH_BYTES, name), "big")
    if length > most:
        raise EngineError(f"a {name} of {length} bytes; at most {most} are read")
    return _exactly(read, length, name)


def _exactly(read: Read, length: int, name: str) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = read(length - len(data))
        if not piece:
            raise EngineError(f"the input ended after {len(data)} of {length} bytes of the {name}")
        data += piece
    return bytes(data)
