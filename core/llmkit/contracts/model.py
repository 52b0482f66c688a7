"""Models: from token ids to hidden states to logits, with attention left to the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from llmkit.contracts.attention import AttentionBackend, AttentionPlan, AttentionSpec
from llmkit.contracts.linear import LinearMethod
from llmkit.contracts.ops import Ops
from llmkit.contracts.weights import CheckpointInfo, ModelFiles, WeightRef

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model implementation is made for. Since 0.1."""

    info: CheckpointInfo
    files: ModelFiles
    dtype: str
    device: str
    max_model_len: int
    """Positions that will occur, for tables such as rope's."""
    layers: tuple[int, int]
    """This stage's layers, first and one past the last; (0, 0) where the config has no number of them."""
    trust_remote_code: bool = False
    rank: int = 0
    world: int = 1
    deterministic: bool = False
    """Only a row-invariant implementation may be used."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The chosen components a model builds itself from."""

    linear: LinearMethod
    ops: Ops


@dataclass(slots=True)
class ModelInput:
    """One step's tokens, packed row after row. Since 0.1."""

    token_ids: Tensor | None
    """int64 [tokens]; None where embeddings are given."""
    positions: Tensor
    """int64 [tokens]"""
    embeddings: Tensor | None = None
    """[tokens, hidden]"""
    token_types: Tensor | None = None
    """int64 [tokens]: 1 in the second text of a pair, else 0; None where no row has a second text."""


@dataclass(slots=True)
class ModelState:
    """What a stage passes on: to the next stage, or to ``logits``. Since 0.1."""

    hidden: Tensor
    """[tokens, hidden]; after the last stage, normed."""
    residual: Tensor | None = None


@dataclass(slots=True)
class StepContext:
    """A step's surroundings, passed down to every attention layer. Since 0.1."""

    backend: AttentionBackend
    plan: AttentionPlan
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Request id -> its token range in this step, only for requests that carry plugin data."""
    plugin_data: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Request id -> plugin -> what its ``prepare_request`` sent along."""


class Model(Protocol):
    """A causal language model without its sampler. Since 0.1."""

    attention: tuple[AttentionSpec, ...]
    """One for each attention layer, in order; known as soon as it is built."""
    vocab_size: int
    """Rows of the embedding: token ids from 0 to one below it are valid."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that its weights and tables take, in whatever form they are kept.

        Valid once loaded; counted, never measured, so that the same model always gives the same number.
        """

    def load(self, weights: Iterable[WeightRef], on_weight: Callable[[WeightRef], None]) -> None:
        """Take every weight, calling ``on_weight`` after each.

        :raises CheckpointError: a weight is missing, left over or of the wrong shape.
        """

    def forward(self, inputs: ModelInput, ctx: StepContext, state: ModelState | None) -> ModelState:
        """Run this stage's layers; ``state`` is the previous stage's, None in the first."""

    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden] -> float32 [rows, vocab_size]``"""


class PoolingModel(Model, Protocol):
    """A model with a head of its own over pooled hidden states. Since 0.1."""

    def pool(self, states: Tensor) -> Tensor:
        """``[rows, hidden] -> float32 [rows, outputs]``: the head's logits, a row each."""


LayerTap = Callable[["Tensor", StepContext], "Tensor | None"]
"""``(stream, ctx)``: the residual stream behind a layer, [tokens, hidden], read only. Gives what to add to
it, [tokens, hidden] in its dtype, or None for nothing. Called in every step, outside of any graph."""


class ModelDraft(Protocol):
    """A model with its weights, for ``prepare_model``. Since 0.1."""

    model: Model
    """Read only: it changes through this draft."""
    spec: ModelSpec

    def tap(self, layer: int, tap: LayerTap, why: str) -> None:
        """Change what leaves decoder layer ``layer`` (from 0); the start-up summary says who and why.

        A tap that keeps to a row's own values keeps rows independent of each other; where it depends on
        the request, ``RequestDraft.cache_key`` must tell requests apart.

        :raises StartupError: the implementation has no taps, or no such layer.
        """

    def refuse(self, message: str) -> None:
        """:raises StartupError: always."""


class TappableModel(Model, Protocol):
    """A model implementation whose layers ``prepare_model`` may tap. Since 0.1."""

    def tap(self, layer: int, tap: LayerTap) -> None:
        """Run ``tap`` behind layer ``layer``, after those set before. :raises ValueError: no such layer."""


@dataclass(frozen=True, slots=True)
class ModelHook:
    """One plugin's ``prepare_model``, ready to call."""

    plugin: str
    function: Callable[[ModelDraft], Any]


class WorkerHandle(Protocol):
    """What a worker method may see of its worker. Since 0.1."""

    model: Model
    rank: int
    device: str


class RegisterWorkerMethod(Protocol):
    """Since 0.1."""

    def __call__(self, name: str, factory: Callable[[WorkerHandle, Any], Callable[..., Any]]) -> None:
        """``factory(worker, options)`` gives the method, once in each worker; ``method(*args)`` runs
        between steps, on every rank. Arguments and answer are msgpack values."""


ModelFactory = Callable[[ModelSpec, ModelParts, Any], Model]


class RegisterModel(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: ModelFactory,
        *,
        architectures: tuple[str, ...],
        refuses: Callable[[ModelSpec], str | None],
        priority: int = 0,
    ) -> None:
        """Offer implementation ``name`` for these architectures (``("*",)`` for any).

        ``auto`` takes the highest priority that does not refuse. ``refuses`` imports no torch: it
        runs in the front process too.
        """
