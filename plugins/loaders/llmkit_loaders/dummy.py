"""Loader ``dummy``: random weights for any config at full size, for work on speed.

The names and shapes come from transformers' model of the config, built on the meta device, so nothing is
read but the config. Values are the same for the same seed, on every rank and for every slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmkit import UnsupportedModel
from llmkit.contracts import CheckpointInfo, LoaderSpec, WeightRef
from llmkit_loaders.hf_directory import read_info
from llmkit_loaders.sentence_files import with_pooling

if TYPE_CHECKING:
    import torch

_PERIOD = 1 << 20
"""Values repeat after so many: drawing 8 billion normals would take minutes, and speed does not see it."""


class DummyLoader:
    """Makes weights up; asked for by name only."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec

    def info(self) -> CheckpointInfo:
        """As the checkpoint's own loader says, less its encoding; needs no weight files."""
        if self._spec.files.path.endswith(".gguf"):
            from llmkit_loaders.gguf_loader import GgufLoader

            info = GgufLoader(self._spec).info()
        else:
            root = self._spec.files.root
            info = with_pooling(read_info(root, self._spec.hf_overrides), root)
        return CheckpointInfo(
            info.architecture, info.config, info.generation_config, info.chat_template, pooling=info.pooling
        )

    def weights(self) -> Iterator[WeightRef]:
        """Every parameter of transformers' model of this config, tied ones once.

        :raises UnsupportedModel: transformers does not know the architecture.
        """
        info = self.info()
        std = float(info.config.get("initializer_range", 0.02))
        for name, shape in _parameters(info):
            yield DummyRef(name, shape, "float32", self._spec.seed, std, shape, ())


@dataclass(frozen=True, slots=True)
class DummyRef:
    """One made-up tensor, or a slice of it."""

    name: str
    shape: tuple[int, ...]
    encoding: str
    _seed: int
    _std: float
    _full: tuple[int, ...]
    _cuts: tuple[tuple[int, int, int], ...]

    def narrow(self, dim: int, start: int, length: int) -> DummyRef:
        """A slice, still unmade.

        :raises IndexError: it lies outside the tensor.
        """
        if not 0 <= dim < len(self.shape) or start < 0 or length < 0 or start + length > self.shape[dim]:
            raise IndexError(f"{self.name}: no slice {start}+{length} of dimension {dim} of {self.shape}")
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        return replace(self, shape=shape, _cuts=(*self._cuts, (dim, start, length)))

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Norms are ones, biases zeros, everything else normal; a fresh tensor."""
        import torch

        if len(self._full) < 2:
            fill = 1.0 if self.name.endswith("weight") else 0.0
            return torch.full(self.shape, fill, dtype=dtype)
        digest = hashlib.blake2b(f"{self._seed}:{self.name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        count = 1
        for size in self._full:
            count *= size
        values = torch.empty(min(count, _PERIOD)).normal_(0.0, self._std, generator=generator).to(dtype)
        if count > _PERIOD:
            values = values.repeat(-(-count // _PERIOD))[:count]
        values = values.reshape(self._full)
        for dim, start, length in self._cuts:
            values = values.narrow(dim, start, length)
        return values.contiguous()


def _parameters(info: CheckpointInfo) -> list[tuple[str, tuple[int, ...]]]:
    import torch
    import transformers

    config = {key: value for key, value in info.config.items() if key != "model_type"}
    kind: Any = getattr(transformers, info.architecture, None)
    model_type = info.config.get("model_type")
    if kind is None or not isinstance(model_type, str):
        raise UnsupportedModel(
            f"--load-format dummy: transformers knows no model {info.architecture!r} (model_type "
            f"{model_type!r}), so the shapes of its weights are unknown"
        )
    with torch.device("meta"):
        model = kind(transformers.AutoConfig.for_model(model_type, **config))
    model.tie_weights()
    # Each parameter once, under its first name: a tied head is not in a checkpoint either.
    found = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    kept = model.state_dict().keys()
    buffers = [(name, tuple(buffer.shape)) for name, buffer in model.named_buffers() if name in kept]
    return found + buffers
