"""What the front hands to the engine process through its standard input."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from llmkit.config import Config
from llmkit.contracts.weights import CheckpointInfo, ModelFiles
from llmkit.errors import EngineError

MAX_LAUNCH_BYTES = 64 << 20


class EngineLaunch(msgspec.Struct, frozen=True):
    """All that an engine process is started with."""

    config: Config
    files: ModelFiles
    info: CheckpointInfo
    uds: str | None = None
    """The Unix socket that the front serves; removed by the engine if the front dies."""


def write_launch(stream: BinaryIO, launch: EngineLaunch) -> None:
    """Eight bytes of length, big-endian, then msgpack. Keep the stream open: its end means the front died."""
    payload = msgspec.msgpack.encode(launch)
    stream.write(len(payload).to_bytes(8, "big") + payload)
    stream.flush()


def read_launch(stream: BinaryIO) -> EngineLaunch:
    """:raises EngineError: the stream ended early or holds something else."""
    header = _read(stream, 8)
    length = int.from_bytes(header, "big")
    if length > MAX_LAUNCH_BYTES:
        raise EngineError(f"a launch of {length} bytes; at most {MAX_LAUNCH_BYTES} are read")
    try:
        return msgspec.msgpack.decode(_read(stream, length), type=EngineLaunch)
    except msgspec.DecodeError as error:
        raise EngineError(f"the launch cannot be read: {error}") from None


def _read(stream: BinaryIO, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = stream.read(length - len(data))
        if not piece:
            raise EngineError(f"standard input ended after {len(data)} of {length} bytes of the launch")
        data += piece
    return bytes(data)
