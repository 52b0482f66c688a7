"""In the worker: what is added behind the layer."""

from __future__ import annotations

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor

from llmkit.contracts import ModelSpec, StepContext
from llmkit_steering.plugin import Steer

_decode = msgspec.msgpack.Decoder(Steer).decode


class SteeringTap:
    """Owns the directions, in the model's dtype on its device."""

    def __init__(self, path: str, spec: ModelSpec) -> None:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        self._vectors = {name: v.to(spec.device, dtype) for name, v in load_file(path).items()}

    def __call__(self, stream: Tensor, ctx: StepContext) -> Tensor | None:
        """``stream`` [tokens, hidden]: the tokens of each steered request get its direction on top."""
        added: Tensor | None = None
        for request_id, (begin, end) in ctx.rows.items():
            data = ctx.plugin_data[request_id].get("steering")
            if data is None:
                continue
            if added is None:
                added = torch.zeros_like(stream)
            steer = _decode(data)
            added[begin:end] = steer.strength * self._vectors[steer.name]
        return added
