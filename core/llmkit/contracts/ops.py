"""The fixed list of small tensor operations that a plugin may replace by faster ones.

``llmkit.nn.ops`` has the plain torch version of each: the default, and the oracle that
``llmkit.testing`` compares with. Chosen once at load, by device and priority.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from torch import Tensor

OpName = Literal["rms_norm", "add_rms_norm", "rope", "silu_mul"]
OP_NAMES: tuple[OpName, ...] = get_args(OpName)


@dataclass(frozen=True, slots=True)
class Ops:
    """The bound operations a model calls. Every one is row-invariant where ``deterministic`` is on.

    Since 0.1.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """``(x [tokens, n], weight [n], eps) -> [tokens, n]``; the mean of squares is in fp32."""
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """``(x, residual, weight, eps)``: adds x into ``residual`` in place, returns its norm."""
    rope: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    """``(q [tokens, heads, size], k, cos [tokens, rotary / 2], sin)``: rotates halves (NeoX) in place."""
    silu_mul: Callable[[Tensor], Tensor]
    """``x [tokens, 2n] -> silu(x[:, :n]) * x[:, n:]``."""


@dataclass(frozen=True, slots=True)
class OpsEnv:
    """What ops are chosen for. Since 0.1."""

    device: str
    dtype: str
    deterministic: bool
    num_threads: int = 1


class RegisterOps(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[OpsEnv, Any], dict[OpName, Callable[..., Any]]],
        *,
        refuses: Callable[[OpsEnv], str | None],
        priority: int = 0,
    ) -> None:
        """``factory`` gives those it has; each op is taken from the highest priority that offers it."""
