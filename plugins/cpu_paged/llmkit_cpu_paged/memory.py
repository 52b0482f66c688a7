"""Tensors as kernels read them: any distance between rows, no gap within one."""

from __future__ import annotations

from torch import Tensor


def whole_rows(tensor: Tensor) -> Tensor:
    """The tensor itself where everything but its first dimension is contiguous, else a copy.

    The stride of a dimension of one element says nothing: torch leaves any number there, also in
    what ``contiguous()`` returns.
    """
    if tensor.is_contiguous():
        return tensor
    stride, shape = tensor.stride(), tensor.shape
    if stride[-1] == 1 and (len(shape) == 2 or (len(shape) == 3 and stride[1] == shape[2])):
        return tensor  # nearly always; what follows costs a microsecond, a hundred times a step
    expected = 1
    for size, step in zip(reversed(shape[1:]), reversed(stride[1:]), strict=True):
        if size != 1 and step != expected:
            return tensor.contiguous()
        expected *= size
    return tensor


def write_back(rows: Tensor, tensor: Tensor) -> None:
    """Give ``tensor`` what was written to its :func:`whole_rows`."""
    if rows is not tensor:
        tensor.copy_(rows)
