"""Rotary position embedding: frequencies of the known scalings, and the table of cos and sin."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from llmkit.errors import UnsupportedModel
from llmkit.text import listing

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Scalings whose frequencies do not depend on the length of a sequence."""
_PIECE = 4096
"""Positions whose cos and sin are computed at a time."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions turn. ``parameters`` are the scaling's own, under their Hugging Face names."""

    size: int
    """Entries of a head that turn; even."""
    base: float = 10000.0
    type: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict)
    max_position: int = 0
    """The config's ``max_position_embeddings``; yarn takes its factor from it where it gives none."""


class Rotary:
    """The cos and sin of every position below ``max_len`` that has occurred, in fp32. Since 0.1.

    Its tables have room for all positions, which costs address space; a piece of them is computed, and
    takes memory, once a position in it or behind it occurs.
    """

    __slots__ = ("_cos", "_frequencies", "_known", "_scale", "_sin")

    def __init__(self, spec: RopeSpec, max_len: int, dtype: torch.dtype, device: str) -> None:
        self._frequencies, self._scale = inverse_frequencies(spec)
        self._cos = torch.empty(max_len, spec.size // 2, dtype=dtype, device=device)
        self._sin = torch.empty_like(self._cos)
        self._known = 0
        self._learn(min(_PIECE, max_len))

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each ``[tokens, size / 2]``, of ``positions`` int64 ``[tokens]``."""
        if self._known < len(self._cos):
            self._learn(int(positions.max()) + 1)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that it takes so far."""
        return 2 * self._cos[: self._known].nbytes

    def _learn(self, length: int) -> None:
        """Compute whole pieces until positions below ``length`` are known."""
        while self._known < min(length, len(self._cos)):
            end = min(self._known + _PIECE, len(self._cos))
            # fp32 throughout, as the models were trained and published with
            angles = torch.outer(torch.arange(self._known, end, dtype=torch.float32), self._frequencies)
            self._cos[self._known : end] = angles.cos() * self._scale
            self._sin[self._known : end] = angles.sin() * self._scale
            self._known = end


def inverse_frequencies(spec: RopeSpec) -> tuple[Tensor, float]:
    """Radians a position for each pair, fp32 ``[size / 2]``, and what cos and sin are multiplied by.

    :raises UnsupportedModel: a scaling that is not in ``ROPE_TYPES``.
    """
    periods = spec.base ** (torch.arange(0, spec.size, 2, dtype=torch.float32) / spec.size)
    plain = 1.0 / periods
    match spec.type:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / float(spec.parameters["factor"]), 1.0
        case "llama3":
            return _llama3(plain, spec.parameters), 1.0
        case "yarn":
            return _yarn(plain, periods, spec)
    raise UnsupportedModel(f"rope type {spec.type!r} is not supported; known are {listing(ROPE_TYPES)}")


def _llama3(plain: Tensor, parameters: dict[str, Any]) -> Tensor:
    """Long wavelengths divided by the factor, short ones kept, those between blended."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / plain
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    slow = torch.where(wavelengths > original / low, plain / factor, plain)
    between = ~(wavelengths < original / high) & ~(wavelengths > original / low)
    return torch.where(between, blended, slow)


def _yarn(plain: Tensor, periods: Tensor, spec: RopeSpec) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): a ramp over the pairs between interpolation and extrapolation."""
    parameters = spec.parameters
    original = float(parameters.get("original_max_position_embeddings") or spec.max_position)
    factor = float(parameters.get("factor") or spec.max_position / original)

    def pair(turns: float) -> float:
        return spec.size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.base))

    first, last = (
        pair(float(parameters.get("beta_fast") or 32)),
        pair(float(parameters.get("beta_slow") or 1)),
    )
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.size - 1)
    ramp = (torch.arange(spec.size // 2, dtype=torch.float32) - first) / max(last - first, 0.001)
    extrapolated = 1 - ramp.clamp(0, 1)
    return (1.0 / (factor * periods)) * (1 - extrapolated) + plain * extrapolated, _yarn_scale(
        factor, parameters
    )


def _yarn_scale(factor: float, parameters: dict[str, Any]) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if scale and scale_all:
        return magnitude(float(scale)) / magnitude(float(scale_all))
    return magnitude(1.0)


__all__ = ["ROPE_TYPES", "RopeSpec", "Rotary", "inverse_frequencies"]
