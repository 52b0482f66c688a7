"""Linear layers and tied embeddings of a transformers model, run by the chosen linear method."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from llmkit.contracts import LinearMethod, WeightRef
from llmkit.nn import Linear, TensorRef


class MethodLinear(nn.Module):
    """Stands where an ``nn.Linear`` stood."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear
        self.in_features = linear.spec.in_features
        self.out_features = linear.spec.out_features

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear.apply(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


class MethodEmbedding(nn.Module):
    """Stands where the embedding stood that is tied to a :class:`MethodLinear` head."""

    def __init__(self, head: Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, ids: Tensor) -> Tensor:
        return self.head.embed(ids.reshape(-1)).view(*ids.shape, -1)


class TransposedRef:
    """A weight that its file keeps as ``[in, out]`` (GPT-2), seen as ``[out, in]``."""

    def __init__(self, ref: WeightRef) -> None:
        self._ref = ref
        self.name = ref.name
        self.shape = tuple(reversed(ref.shape))
        self.encoding = ref.encoding

    def narrow(self, dim: int, start: int, length: int) -> TransposedRef:
        return TransposedRef(self._ref.narrow(1 - dim, start, length))

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self._ref.dense(dtype).t()


def replaceable(module: nn.Module) -> bool:
    """Exactly a linear layer: a subclass may compute something else."""
    return type(module) in (nn.Linear, Conv1D)


def replace(
    model: nn.Module,
    name: str,
    method: LinearMethod,
    weight: WeightRef,
    bias: WeightRef | None,
    *,
    tied: bool = False,
) -> MethodLinear:
    """Put a :class:`MethodLinear` with these weights in the place of module ``name``.

    :param tied: an embedding will read its rows.
    """
    old = model.get_submodule(name)
    if isinstance(old, Conv1D):
        weight = TransposedRef(weight)
    rows, columns = weight.shape
    linear = Linear(method, name, columns, (rows,), bias=bias is not None, tied=tied)
    linear.load(0, weight)
    if bias is not None:
        linear.load_bias(0, bias)
    linear.finish()
    new = MethodLinear(linear)
    _set(model, name, new)
    return new


def replace_loaded(model: nn.Module, method: LinearMethod) -> None:
    """Hand the weights of every linear layer that still holds its own over to the method.

    A plain embedding that shares its weight with one then reads its rows through the method.
    """
    names = [name for name, module in model.named_modules() if replaceable(module)]
    for name in names:
        module = model.get_submodule(name)
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        bias_ref = TensorRef(f"{name}.bias", bias.detach()) if isinstance(bias, Tensor) else None
        weight_ref = TensorRef(f"{name}.weight", weight.detach())
        sharing = [
            other
            for other, embedding in model.named_modules()
            if type(embedding) is nn.Embedding and embedding.weight is weight
        ]
        new = replace(model, name, method, weight_ref, bias_ref, tied=bool(sharing))
        for other in sharing:
            _set(model, other, MethodEmbedding(new.linear))


def resident_bytes(model: nn.Module) -> int:
    """Bytes of memory of every weight and table, each counted once, whoever holds it."""
    linears = sum(m.linear.resident_bytes for m in model.modules() if isinstance(m, MethodLinear))
    tensors = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers())}
    return linears + sum(tensors.values())


def _set(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


__all__ = [
    "MethodEmbedding",
    "MethodLinear",
    "TransposedRef",
    "replace",
    "replace_loaded",
    "replaceable",
    "resident_bytes",
]
