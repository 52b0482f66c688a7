"""From the hidden states of whole texts to embeddings, or to what a head says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from llmkit.contracts import Model
from llmkit.contracts.model import PoolingModel
from llmkit.errors import CheckpointError, UnsupportedModel
from llmkit.pooling import Activation, Pooled, PoolingParams, PoolingSpec

NOT_FINITE = "the model's result for this text is not finite"
_DENSE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, slots=True)
class PooledRow:
    """A row of the batch whose prompt ends in this step and is pooled."""

    request_id: str
    first: int
    """Its first token in the step."""
    end: int
    """Behind its last one; of a prompt computed in pieces, this piece's."""
    params: PoolingParams


class HiddenPooler:
    """Owns the Dense modules; the head is the model's."""

    def __init__(self, model: Model, spec: PoolingSpec, root: Path) -> None:
        self._model = model
        self._spec = spec
        self._root = root
        self._dense: list[Callable[[Tensor], Tensor]] = []

    def load(self) -> None:
        """:raises CheckpointError: a Dense module's files are missing or wrong."""
        self._dense = [_read_dense(self._root / folder) for folder in self._spec.dense]

    def pool(self, hidden: Tensor, rows: Sequence[PooledRow]) -> dict[str, Pooled | str]:
        """By request id; a text is why there is none. ``hidden``: [tokens of the step, hidden]."""
        by_token = [row for row in rows if row.params.task in ("token_embed", "token_classify")]
        by_text = [row for row in rows if row.params.task in ("embed", "classify")]
        results: dict[str, Pooled | str] = {}
        if by_text:
            values = self._transformed(torch.stack([self._state(hidden, row) for row in by_text]))
            for row, vector in zip(by_text, values, strict=True):
                results[row.request_id] = self._finished(vector.unsqueeze(0), row.params)
        for row in by_token:
            values = self._transformed(hidden[row.first : row.end].float())
            results[row.request_id] = self._finished(values, row.params)
        return results

    def _state(self, hidden: Tensor, row: PooledRow) -> Tensor:
        """float32 [hidden]; each row by itself, so that no other row shows in it."""
        match self._spec.type:
            case "cls":
                return hidden[row.first].float()
            case "last":
                return hidden[row.end - 1].float()
            case "mean":
                return hidden[row.first : row.end].float().mean(0)

    def _transformed(self, states: Tensor) -> Tensor:
        """float32 [rows, hidden] -> [rows, outputs]"""
        if self._spec.head != "none":
            return cast("PoolingModel", self._model).pool(states)
        for dense in self._dense:
            states = dense(states)
        return states

    def _finished(self, values: Tensor, params: PoolingParams) -> Pooled | str:
        """``values``: [1 or tokens, outputs]"""
        if params.task in ("embed", "token_embed"):
            if params.dimensions is not None:
                values = values[:, : params.dimensions]
            if params.normalize:
                values = F.normalize(values, dim=1)
        elif params.activate:
            values = _activated(values, self._spec.activation)
        if not bool(values.isfinite().all()):
            return NOT_FINITE
        return Pooled(values.contiguous().cpu().numpy().tobytes(), values.shape[1])


def _activated(logits: Tensor, activation: Activation) -> Tensor:
    match activation:
        case "none":
            return logits
        case "sigmoid":
            return logits.sigmoid()
        case "softmax":
            return logits.softmax(1)


def _read_dense(folder: Path) -> Callable[[Tensor], Tensor]:
    """A Dense module of sentence-transformers: a linear layer and an activation, in fp32."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: a Dense module needs config.json and model.safetensors: {error}"
        ) from None
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _DENSE_ACTIVATIONS:
        known = ", ".join(_DENSE_ACTIVATIONS)
        raise UnsupportedModel(f"{folder}: activation_function is {name!r}; known are {known}")
    activation = _DENSE_ACTIVATIONS[name]
    if "linear.weight" not in weights:
        raise CheckpointError(f"{folder}: model.safetensors has no linear.weight")
    weight = weights["linear.weight"].float()
    bias = weights["linear.bias"].float() if "linear.bias" in weights else None
    return lambda states: activation(F.linear(states, weight, bias))
