"""GGUF files: metadata and tensor table, read from a memory map and checked against the file's size.

gguf's own reader spends seconds on a large vocabulary; here arrays of strings are skipped and decoded
only when somebody wants them. Every count and length comes from the file and is checked before use.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from llmkit import CheckpointError, UnsupportedModel

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

MAX_METADATA_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_PARTS = 1000
MAX_NAME_BYTES = 1 << 16
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class Strings:
    """An array of strings still in the file."""

    path: Path
    data: mmap.mmap
    start: int
    count: int

    def decode(self) -> list[str]:
        """:raises CheckpointError: one is not UTF-8."""
        found: list[str] = []
        at, data, length_at = self.start, self.data, _U64.unpack_from
        try:
            for _ in range(self.count):
                end = at + 8 + length_at(data, at)[0]
                found.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.path}: string {len(found)} of an array is not UTF-8: {error}"
            ) from None
        return found


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the table; ``data`` is its mapped bytes, uint8 ``[nbytes]``."""

    name: str
    shape: tuple[int, ...]
    """Outermost first, as torch counts."""
    type: GGMLQuantizationType
    data: Bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """All parts of one model: the first one's metadata and every part's tensors, in order."""

    path: Path
    metadata: dict[str, Any]
    """Numbers, strings and bools as Python's; arrays as numpy's or :class:`Strings`."""
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str):
            raise CheckpointError(f"{self.path}: the metadata names no general.architecture")
        return value


def part_paths(path: Path) -> list[Path]:
    """Every part of the model that ``path``, any part of it, belongs to; itself where it has one part."""
    match = _PART.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MAX_PARTS:
        raise CheckpointError(f"{path}: its name says {count} parts; from 1 to {MAX_PARTS} are read")
    return [path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]


def open_gguf(path: Path) -> GgufFile:
    """Map a model's parts and read what they say; no tensor data is touched.

    :raises CheckpointError: a part is missing, truncated or corrupt; names the file.
    :raises UnsupportedModel: a tensor has a type this gguf library does not know.
    """
    metadata: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    paths = part_paths(path)
    for number, part in enumerate(paths):
        if not part.is_file():
            raise CheckpointError(f"{part} is missing: part {number + 1} of {len(paths)} of this model")
        reader = _Reader(part)
        found, table = reader.read()
        if number == 0:
            metadata = found
        for tensor in table:
            if tensor.name in tensors:
                raise CheckpointError(f"{part}: tensor {tensor.name!r} is there twice")
            tensors[tensor.name] = tensor
    expected = metadata.get("split.count", 1)
    if expected not in (0, len(paths)):
        raise CheckpointError(f"{path}: the model has {expected} parts, the file's name says {len(paths)}")
    return GgufFile(path, metadata, tensors)


class _Reader:
    """A cursor over one file; every step is checked against the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                # Private: torch may write into a tensor made of it, the file never changes.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from None
        self._size = len(self._data)
        self._at = 0

    def read(self) -> tuple[dict[str, Any], list[Tensor]]:
        num_tensors, num_keys = self._header()
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._name()
            if key in metadata:
                raise self._corrupt(f"metadata key {key!r} is there twice")
            metadata[key] = self._value(self._u32(), key)
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT:
            raise self._corrupt(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return metadata, [self._tensor(*entry, start) for entry in table]

    def _header(self) -> tuple[int, int]:
        if self._data[:4] != b"GGUF":
            raise CheckpointError(f"{self._path} is no GGUF file: it begins with {self._data[:4]!r}")
        self._at = 4
        version = self._u32()
        if version not in (2, 3):
            hint = " (big-endian files are not read)" if version >= 1 << 16 else ""
            raise CheckpointError(f"{self._path} is GGUF version {version}{hint}; versions 2 and 3 are read")
        num_tensors, num_keys = self._u64(), self._u64()
        if num_tensors > MAX_TENSORS or num_keys > MAX_METADATA_KEYS:
            raise self._corrupt(
                f"it claims {num_tensors} tensors and {num_keys} metadata keys; at most {MAX_TENSORS} and "
                f"{MAX_METADATA_KEYS} are read"
            )
        return num_tensors, num_keys

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(self._size, f"metadata {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise self._corrupt(f"metadata {key!r} has the unknown type {kind}")
        return self._numbers(dtype, 1)[0].item()

    def _array(self, key: str) -> Any:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            return self._strings(count, key)
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise self._corrupt(f"metadata {key!r} is an array of the unknown or nested type {kind}")
        return self._numbers(dtype, count)

    def _numbers(self, dtype: str, count: int) -> np.ndarray[Any, Any]:
        size = np.dtype(dtype).itemsize * count
        start = self._take(size)
        return np.frombuffer(self._data, dtype, count, start)

    def _strings(self, count: int, key: str) -> Strings:
        start = self._at
        self._need(8 * count, f"{count} strings of metadata {key!r}")
        at, data, size, length_at = start, self._data, self._size, _U64.unpack_from
        for number in range(count):
            if at + 8 > size:
                raise self._truncated(f"string {number} of metadata {key!r}")
            at += 8 + length_at(data, at)[0]
        self._at = at
        self._need(0, f"metadata {key!r}")
        return Strings(self._path, data, start, count)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._name()
        num_dims = self._u32()
        if not 1 <= num_dims <= MAX_DIMENSIONS:
            raise self._corrupt(f"tensor {name!r} has {num_dims} dimensions")
        dims = tuple(self._u64() for _ in range(num_dims))
        return name, dims[::-1], self._u32(), self._u64()

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int) -> Tensor:
        try:
            type = GGMLQuantizationType(kind)
            block, block_bytes = GGML_QUANT_SIZES[type]
        except (ValueError, KeyError):
            raise UnsupportedModel(
                f"{self._path}: tensor {name!r} has type {kind}, which the gguf library here does not know"
            ) from None
        if min(shape) < 1 or shape[-1] % block:
            raise self._corrupt(f"tensor {name!r} of type {type.name} has shape {list(shape)}")
        size = prod(shape) // block * block_bytes
        if start + offset + size > self._size:
            end = start + offset + size
            raise CheckpointError(
                f"{self._path} is truncated or corrupt: tensor {name!r} ends at byte {end}, the file at "
                f"{self._size}"
            )
        return Tensor(name, shape, type, np.frombuffer(self._data, np.uint8, size, start + offset))

    def _name(self) -> str:
        return self._text(MAX_NAME_BYTES, "a name")

    def _text(self, limit: int, what: str) -> str:
        length = self._u64()
        if length > limit:
            raise self._corrupt(f"{what} claims {length} bytes")
        start = self._take(length)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError:
            raise self._corrupt(f"{what} is not UTF-8") from None

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self._take(8))[0]
        return value

    def _take(self, size: int) -> int:
        self._need(size, f"{size} bytes at {self._at}")
        start = self._at
        self._at += size
        return start

    def _need(self, size: int, what: str) -> None:
        if self._at + size > self._size:
            raise self._truncated(what)

    def _truncated(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is truncated or corrupt: it ends at byte {self._size}, within {what}"
        )

    def _corrupt(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is corrupt: {why}")
