"""Filling a model from a checkpoint: which weight goes where, and what is missing, left over or misshapen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from llmkit.contracts import WeightRef
from llmkit.errors import CheckpointError

_SHOWN = 8
"""Names an error message lists before it counts the rest."""


@dataclass(frozen=True, slots=True)
class _Place:
    shape: tuple[int, ...]
    take: Callable[[WeightRef], None]


class WeightMap:
    """Names of a checkpoint's weights -> what takes them. Built with the model, used once.

    Since 0.1.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._ignored: list[Callable[[str], bool]] = []

    def add(self, name: str, shape: tuple[int, ...], take: Callable[[WeightRef], None]) -> None:
        """``take`` is called once with the weight of this name, after its shape was checked."""
        assert name not in self._places, f"{name} is mapped twice"
        self._places[name] = _Place(shape, take)

    def ignore(self, matches: Callable[[str], bool]) -> None:
        """Weights that may be in the checkpoint and are not needed."""
        self._ignored.append(matches)

    def load(self, weights: Iterable[WeightRef], on_weight: Callable[[WeightRef], None]) -> None:
        """Hand out every weight.

        :raises CheckpointError: names those that are missing, left over or of the wrong shape.
        """
        waiting = dict(self._places)
        left_over: list[str] = []
        wrong: list[str] = []
        for ref in weights:
            place = waiting.pop(ref.name, None)
            if place is not None:
                if tuple(ref.shape) == place.shape:
                    place.take(ref)
                else:
                    wrong.append(f"{ref.name} is {list(ref.shape)}, not {list(place.shape)}")
            elif ref.name in self._places:
                left_over.append(f"{ref.name} (twice)")
            elif not any(matches(ref.name) for matches in self._ignored):
                left_over.append(ref.name)
            on_weight(ref)
        complain(missing=waiting, left_over=left_over, wrong=wrong)


class Vector:
    """One small dense weight, such as a norm's; ``value`` is set by loading. Owner of its tensor."""

    __slots__ = ("value",)

    def __init__(self, size: int, dtype: torch.dtype, device: str) -> None:
        self.value = torch.empty(size, dtype=dtype, device=device)

    def take(self, ref: WeightRef) -> None:
        self.value.copy_(ref.dense(self.value.dtype))


class TensorRef:
    """A tensor in memory as a :class:`~llmkit.contracts.WeightRef`."""

    __slots__ = ("_tensor", "encoding", "name", "shape")

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name = name
        self.shape = tuple(tensor.shape)
        self.encoding = str(tensor.dtype).removeprefix("torch.")
        self._tensor = tensor

    def narrow(self, dim: int, start: int, length: int) -> TensorRef:
        return TensorRef(self.name, self._tensor.narrow(dim, start, length))

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self._tensor.to(dtype)


def complain(*, missing: Iterable[str], left_over: Iterable[str], wrong: Iterable[str]) -> None:
    """:raises CheckpointError: with the names, if there is anything to complain of."""
    parts = [
        f"{word} {_named(names)}"
        for word, names in (("missing", missing), ("not expected", left_over), ("wrong shape", wrong))
        if any(True for _ in names)
    ]
    if parts:
        raise CheckpointError(
            f"the checkpoint does not fit its config: {'; '.join(parts)}. "
            "Check that config and weights belong together and that no file is missing."
        )


def _named(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = len(ordered) - _SHOWN
    return ", ".join(ordered[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


__all__ = ["TensorRef", "Vector", "WeightMap", "complain"]
