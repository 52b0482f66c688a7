"""Checkpoints: where a MODEL's files come from, what they say, and their weights, read lazily."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from llmkit.pooling import PoolingSpec

if TYPE_CHECKING:
    from torch import Tensor, dtype

Progress = Callable[[str, float], None]
"""``progress(phase, fraction)``: fraction from 0 to 1; called from any thread, must be cheap."""


class SourceRequest(msgspec.Struct, frozen=True):
    """A MODEL reference as typed, less its ``NAME:`` prefix where it had one. Since 0.1."""

    reference: str
    revision: str | None = None
    trust_remote_code: bool = False


class ModelFiles(msgspec.Struct, frozen=True):
    """Local files behind a MODEL reference. Since 0.1."""

    path: str
    """A directory in the Hugging Face layout, or one ``.gguf`` file (the first of its parts)."""
    name: str
    """What the model is called where no served name is given."""
    identity: str
    """Changes whenever the weights do: revision, or sizes and times of the files; in cache keys."""

    @property
    def root(self) -> Path:
        return Path(self.path)


class ModelSource(Protocol):
    """Turns a reference into local files, fetching them where that is its business. Since 0.1."""

    def claims(self, reference: str) -> bool:
        """Whether an unprefixed reference looks like this source's; must not touch the network."""

    def resolve(self, request: SourceRequest, progress: Progress) -> ModelFiles:
        """:raises ModelNotFound: with what was looked for, where, and what to do."""


class CheckpointInfo(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself, in the vocabulary of a Hugging Face ``config.json``."""

    architecture: str
    """As in ``config.json``: ``LlamaForCausalLM``."""
    config: dict[str, Any]
    generation_config: dict[str, Any] = {}
    """As in ``generation_config.json``; ``eos_token_id`` may be an int or a list."""
    chat_template: str | None = None
    encoding: str = "dense"
    """``dense`` or the quantization, for the start-up summary and refusals."""
    pooling: PoolingSpec | None = None
    """Of a loader: what sentence-transformers' files beside the checkpoint say. From then on: how the model
    pools; None if it generates."""

    @property
    def context_length(self) -> int | None:
        """Longest sequence the model was made for, tokens; None where its config does not say."""
        known = [self.pooling.max_length] if self.pooling is not None else []
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            value = self.config.get(key)
            if isinstance(value, int) and value > 0:
                known.append(value)
                break
        return min((length for length in known if length is not None), default=None)


class WeightRef(Protocol):
    """One tensor of a checkpoint, not read yet. Since 0.1."""

    @property
    def name(self) -> str:
        """Hugging Face parameter name, also where the file uses others."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def encoding(self) -> str:
        """``float32``, ``bfloat16``, ``float16`` or a packed encoding (``gguf:Q4_1``)."""

    def narrow(self, dim: int, start: int, length: int) -> WeightRef:
        """A slice, still unread."""

    def dense(self, dtype: dtype) -> Tensor:
        """Read and decode; a fresh CPU tensor, or a view of the mapped file where nothing changes."""


class WeightLoader(Protocol):
    """Reads one format. ``info`` imports no torch. Since 0.1."""

    def info(self) -> CheckpointInfo:
        """:raises CheckpointError: the file is corrupt, truncated or lacks a part."""

    def weights(self) -> Iterator[WeightRef]:
        """Every tensor once, in the order of the file."""


@dataclass(frozen=True, slots=True)
class LoaderSpec:
    """What a loader is made for. Since 0.1."""

    files: ModelFiles
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    """Entries laid over the checkpoint's config (nested dicts merge)."""
    seed: int = 0
    """For made-up weights."""


class RegisterSource(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, factory: Callable[[Any], ModelSource]) -> None:
        """``factory(options)``; ``name:`` is its prefix in a MODEL reference."""


class RegisterLoader(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[LoaderSpec, Any], WeightLoader],
        *,
        refuses: Callable[[LoaderSpec], str | None],
        priority: int = 0,
    ) -> None:
        """``auto`` takes the first, by priority, that does not refuse the files. A negative
        priority keeps it out of ``auto``."""
