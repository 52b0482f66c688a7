"""Loader ``safetensors``: a Hugging Face directory with one or several ``.safetensors`` files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from llmkit import CheckpointError
from llmkit.contracts import CheckpointInfo, LoaderSpec, WeightRef
from llmkit_loaders.hf_directory import read_info, read_json
from llmkit_loaders.sentence_files import with_pooling

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class SafetensorsLoader:
    """Reads one directory; files are mapped, never copied whole."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec

    def info(self) -> CheckpointInfo:
        """:raises CheckpointError: a file is corrupt, truncated or missing; names it."""
        info = read_info(self._spec.files.root, self._spec.hf_overrides)
        for path in _shards(self._spec.files.root):
            _open(path, "numpy")  # checks header and size, reads no tensor
        return with_pooling(info, self._spec.files.root)

    def weights(self) -> Iterator[WeightRef]:
        """Every tensor once, file after file in the order of its bytes.

        :raises CheckpointError: a file is corrupt, or the index and the files disagree.
        """
        root = self._spec.files.root
        placed = _weight_map(root)
        seen: set[str] = set()
        for path in _shards(root):
            handle = _open(path, "pt")
            for name in handle.offset_keys():
                if name in seen or placed.get(name, path.name) != path.name:
                    raise CheckpointError(
                        f"{path}: tensor {name!r} is there twice, or not where the index says"
                    )
                seen.add(name)
                part = handle.get_slice(name)
                shape = tuple(part.get_shape())
                dtype = part.get_dtype()
                encoding = _DTYPES.get(dtype, dtype.lower())
                ranges = tuple(slice(0, size) for size in shape)
                yield SafetensorsRef(name, shape, encoding, handle, ranges)
        missing = sorted(placed.keys() - seen)
        if missing:
            raise CheckpointError(
                f"{root / placed[missing[0]]}: tensor {missing[0]!r} is missing ({len(missing)} in all)"
            )


@dataclass(frozen=True, slots=True)
class SafetensorsRef:
    """One tensor, or a slice of it, still in its mapped file."""

    name: str
    shape: tuple[int, ...]
    encoding: str
    _handle: Any
    _ranges: tuple[slice, ...]

    def narrow(self, dim: int, start: int, length: int) -> SafetensorsRef:
        """A slice, still unread.

        :raises IndexError: it lies outside the tensor.
        """
        if not 0 <= dim < len(self.shape) or start < 0 or length < 0 or start + length > self.shape[dim]:
            raise IndexError(f"{self.name}: no slice {start}+{length} of dimension {dim} of {self.shape}")
        ranges = list(self._ranges)
        first = ranges[dim].start + start
        ranges[dim] = slice(first, first + length)
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        return replace(self, shape=shape, _ranges=tuple(ranges))

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """A view of the mapped file where ``dtype`` is the tensor's own, else a fresh tensor."""
        if not self.shape:
            value: torch.Tensor = self._handle.get_tensor(self.name)
        else:
            value = self._handle.get_slice(self.name)[self._ranges]
        return value.to(dtype)


def _weight_map(root: Path) -> dict[str, str]:
    index = read_json(root / _INDEX)
    if not index:
        return {}
    weights = index.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise CheckpointError(f"{root / _INDEX} is corrupt: it has no weight_map of names to files")
    for name in set(weights.values()):
        if Path(name).name != name:
            raise CheckpointError(f"{root / _INDEX} is corrupt: {name!r} is no file of this directory")
    return weights


def _shards(root: Path) -> list[Path]:
    """The files that hold the weights, in order of their names."""
    names = sorted(set(_weight_map(root).values()))
    if not names:
        found = sorted(path.name for path in root.glob("*.safetensors"))
        # Mistral's own format lies beside the same weights.
        names = [name for name in found if not name.startswith("consolidated")] or found
        if "model.safetensors" in names:
            names = ["model.safetensors"]
    if not names:
        raise CheckpointError(f"no .safetensors file in {root}")
    for name in names:
        if not (root / name).is_file():
            raise CheckpointError(f"{root / name} is missing: {_INDEX} names it")
    return [root / name for name in names]


def _open(path: Path, framework: str) -> Any:
    try:
        return safe_open(path, framework=framework)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or corrupt: {error}") from None
