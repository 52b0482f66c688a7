"""Linear methods: how a linear layer stores its weights and multiplies by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from llmkit.contracts.weights import WeightRef

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear layer, possibly fused from parts (q, k, v) that are stored apart in a checkpoint."""

    name: str
    """For messages: the layer's path in the model."""
    in_features: int
    out_parts: tuple[int, ...]
    """Rows of each part in this rank's layer; their sum is the output width."""
    bias: bool = False
    tied: bool = False
    """Its one part is the embedding too: ``embed`` will be called."""
    shard: Literal["none", "column", "row"] = "none"
    rank: int = 0
    world: int = 1

    @property
    def out_features(self) -> int:
        return sum(self.out_parts)


@dataclass(frozen=True, slots=True)
class LinearEnv:
    """What a method is chosen and made for. Since 0.1."""

    device: str
    dtype: str
    """Of activations: ``float32``, ``bfloat16`` or ``float16``."""
    checkpoint_encoding: str
    deterministic: bool
    num_threads: int = 1


class LinearMethod(Protocol):
    """Makes, fills and applies linear layers. Stateless: each layer's weights are its own object.

    Since 0.1.
    """

    row_invariant: bool
    """A row's result is bit-equal for every number of rows and every neighbour."""

    def create(self, spec: LinearSpec) -> Any:
        """Room for one layer's weights; opaque to everybody else."""

    def load(self, weights: Any, part: int, ref: WeightRef) -> None:
        """Take one part's weight ``[out_parts[part], in_features]``, already narrowed to this rank."""

    def load_bias(self, weights: Any, part: int, ref: WeightRef) -> None:
        """Take one part's bias ``[out_parts[part]]``."""

    def finish(self, weights: Any) -> None:
        """All parts are in: pack. Called once; the method may drop what packing made useless."""

    def apply(self, weights: Any, x: Tensor) -> Tensor:
        """``x [tokens, in_features]`` in the activations' dtype -> ``[tokens, out_features]``."""

    def embed(self, weights: Any, ids: Tensor) -> Tensor:
        """Rows ``ids [tokens]`` of a ``tied`` layer's weight, in the activations' dtype."""

    def nbytes(self, weights: Any) -> int:
        """Bytes that one pass of ``apply`` must read."""

    def resident_bytes(self, weights: Any) -> int:
        """Bytes of memory that the layer's weights take for good, copies for ``embed`` included."""


class RegisterLinearMethod(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[LinearEnv, Any], LinearMethod],
        *,
        refuses: Callable[[LinearEnv], str | None],
        priority: int = 0,
    ) -> None:
        """``auto`` takes the highest priority that does not refuse; a negative one stays out of it."""
