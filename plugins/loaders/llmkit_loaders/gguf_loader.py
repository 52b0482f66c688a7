"""Loader ``gguf``: config, chat template and weights from GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gguf.quants
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import CheckpointInfo, LoaderSpec, WeightRef
from llmkit_loaders.gguf_config import config_of, encoding_of, family_of, generation_config_of
from llmkit_loaders.gguf_families import Target, target
from llmkit_loaders.gguf_file import Bytes, GgufFile, Tensor, open_gguf
from llmkit_loaders.hf_directory import merged

if TYPE_CHECKING:
    import torch

_PLAIN = {
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
}


class GgufLoader:
    """Owns the map of one model's files, made on first use."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec

    def info(self) -> CheckpointInfo:
        """:raises CheckpointError: a file is corrupt, truncated or missing.
        :raises UnsupportedModel: an architecture that is not read.
        """
        config = merged(config_of(self._file), self._spec.hf_overrides)
        template = self._file.metadata.get("tokenizer.chat_template")
        return CheckpointInfo(
            architecture=config["architectures"][0],
            config=config,
            generation_config=generation_config_of(self._file),
            chat_template=template if isinstance(template, str) else None,
            encoding=encoding_of(self._file),
        )

    def weights(self) -> Iterator[WeightRef]:
        """Every parameter once, under its Hugging Face name, in the order of the file.

        :raises CheckpointError: a tensor does not belong to this architecture.
        :raises UnsupportedModel: a tensor's encoding cannot be decoded.
        """
        file = self._file
        kind, config = family_of(file), config_of(file)
        heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
        for tensor in file.tensors.values():
            place = target(kind, tensor.name)
            if place is not None:
                _check_decodable(file, tensor)
                yield from _refs(file, tensor, place, heads)

    @cached_property
    def _file(self) -> GgufFile:
        return open_gguf(self._spec.files.root)


@dataclass(frozen=True, slots=True)
class GgufRef:
    """One parameter, or a slice of it; rows are the first dimension."""

    name: str
    shape: tuple[int, ...]
    encoding: str
    _type: GGMLQuantizationType
    _rows: Bytes
    """uint8 [rows, bytes a row]: whole rows of the file, mapped."""
    _order: np.ndarray[Any, np.dtype[np.int64]] | None = None
    """Row of the file for each row of the parameter, where they differ."""
    _first_column: int = 0
    _minus_one: bool = False

    def narrow(self, dim: int, start: int, length: int) -> GgufRef:
        """A slice, still unread.

        :raises IndexError: it lies outside the parameter.
        """
        if not 0 <= dim < len(self.shape) or start < 0 or length < 0 or start + length > self.shape[dim]:
            raise IndexError(f"{self.name}: no slice {start}+{length} of dimension {dim} of {self.shape}")
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        if dim == 1:
            return replace(self, shape=shape, _first_column=self._first_column + start)
        rows = slice(start, start + length)
        if self._order is not None:
            return replace(self, shape=shape, _order=self._order[rows])
        return replace(self, shape=shape, _rows=self._rows[rows])

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Read and decode into ``dtype``; a view of the mapped file where nothing changes."""
        import torch

        if 0 in self.shape:
            return torch.empty(self.shape, dtype=dtype)
        packed = self._rows if self._order is None else self._rows[self._order]
        block, block_bytes = GGML_QUANT_SIZES[self._type]
        columns = self.shape[1] if len(self.shape) == 2 else 1
        first = self._first_column // block
        last = -(-(self._first_column + columns) // block)
        packed = packed[:, first * block_bytes : last * block_bytes]
        if self._type is GGMLQuantizationType.BF16:
            # numpy knows no bfloat16: torch reads the same bits.
            values = torch.from_numpy(np.ascontiguousarray(packed).view(np.int16)).view(torch.bfloat16)
        elif self._type in _PLAIN:
            plain = np.float32 if self._type is GGMLQuantizationType.F32 else np.float16
            values = torch.from_numpy(np.ascontiguousarray(packed).view(plain))
        else:
            values = torch.from_numpy(gguf.quants.dequantize(np.ascontiguousarray(packed), self._type))
        skipped = self._first_column - first * block
        values = values[:, skipped : skipped + columns].reshape(self.shape)
        if self._minus_one:
            values = values.float() - 1.0
        return values.to(dtype)


def _check_decodable(file: GgufFile, tensor: Tensor) -> None:
    if tensor.type in _PLAIN:
        return
    if len(tensor.shape) == 1:
        raise CheckpointError(f"{file.path}: the vector {tensor.name!r} is packed as {tensor.type.name}")
    try:
        gguf.quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor.type][1]), np.uint8), tensor.type)
    except NotImplementedError:
        raise UnsupportedModel(
            f"{file.path}: tensor {tensor.name!r} has type {tensor.type.name}, which the gguf library here "
            "cannot decode"
        ) from None


def _refs(file: GgufFile, tensor: Tensor, place: Target, heads: dict[str, int]) -> Iterator[GgufRef]:
    encoding = _PLAIN.get(tensor.type, f"gguf:{tensor.type.name}")
    if place.stacked:
        if len(tensor.shape) != 3:
            raise CheckpointError(f"{file.path}: {tensor.name!r} has shape {list(tensor.shape)}, not 3 sizes")
        count, *shape = tensor.shape
        stacked = tensor.data.reshape(count, shape[0], -1)
        for name, rows in zip(place.names(count), stacked, strict=True):
            yield GgufRef(name, tuple(shape), encoding, tensor.type, rows)
        return
    if len(tensor.shape) > 2:
        raise CheckpointError(
            f"{file.path}: {tensor.name!r} has shape {list(tensor.shape)}, not 1 or 2 sizes"
        )
    yield GgufRef(
        place.name,
        tensor.shape,
        encoding,
        tensor.type,
        tensor.data.reshape(tensor.shape[0], -1),
        _order=_halves(file, tensor, heads[place.permuted_for]) if place.permuted_for else None,
        _minus_one=place.minus_one,
    )


def _halves(file: GgufFile, tensor: Tensor, heads: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """llama.cpp rotates neighbours (0,1), (2,3), ...; we rotate halves: put the rows back."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise CheckpointError(
            f"{file.path}: {tensor.name!r} has {rows} rows, no multiple of 2 x {heads} heads"
        )
    order: np.ndarray[Any, np.dtype[np.int64]] = np.arange(rows).reshape(heads, -1, 2)
    return order.swapaxes(1, 2).reshape(-1)
