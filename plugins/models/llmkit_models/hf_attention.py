"""Attention of transformers models, through the registry their layers ask for it.

Every module of an adopted model carries ``llmkit_site``: what its attention calls go to. While the
model is described that is one recorder for all; afterwards each attention layer has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from llmkit import UnsupportedModel
from llmkit.contracts import AttentionSpec, StepContext, listing
from llmkit.nn import Attention, AttentionOutput

NAME = "llmkit"
"""In transformers' registry. No mask interface goes by it, so models build no mask at all."""

_SITE = "llmkit_site"
_KNOWN_ARGUMENTS = {"scaling", "sliding_window", "softcap"}
_HARMLESS_ARGUMENTS = {
    "cache",
    "cache_position",
    "dropout",
    "is_causal",
    "layer_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}
"""Say nothing that attention with a cache of its own needs to know."""


class _Site(Protocol):
    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, arguments: dict[str, Any]
    ) -> Tensor: ...


def register() -> None:
    """Make transformers know us; harmless when repeated."""
    AttentionInterface.register(NAME, _attention)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **arguments: Any
) -> tuple[Tensor, None]:
    """As transformers calls it: q, k, v ``[1, heads, tokens, size]`` -> ``[1, tokens, heads, size]``."""
    site: _Site = getattr(module, _SITE)
    return site.attend(module, query, key, value, attention_mask, arguments), None


class CurrentStep:
    """The step under way, where attention sites find it. Owned by the model, set around each forward."""

    __slots__ = ("ctx",)

    def __init__(self) -> None:
        self.ctx: StepContext | None = None


class LayerSite:
    """Where one attention layer's calls go once the model serves."""

    __slots__ = ("_attention", "_step")

    def __init__(self, attention: Attention, step: CurrentStep) -> None:
        self._attention = attention
        self._step = step

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, arguments: dict[str, Any]
    ) -> Tensor:
        ctx = self._step.ctx
        assert ctx is not None, "attention outside a step"
        out = self._attention(_rows(q), _rows(k), _rows(v), ctx)
        return out.view(1, q.shape[2], q.shape[1], -1)


@dataclass(frozen=True, slots=True)
class _Call:
    module: nn.Module
    spec: AttentionSpec


class _Recorder:
    """Notes every attention call of one forward on the meta device."""

    def __init__(self, *, bidirectional: bool) -> None:
        self._bidirectional = bidirectional
        self.calls: list[_Call] = []

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, arguments: dict[str, Any]
    ) -> Tensor:
        if mask is not None:
            raise UnsupportedModel("it adds a bias or mask of its own to attention scores")
        strange = [
            name
            for name, value in arguments.items()
            if name not in _KNOWN_ARGUMENTS | _HARMLESS_ARGUMENTS and value is not None and value is not False
        ]
        if strange:
            raise UnsupportedModel(f"it passes {listing(strange)} to attention, which no backend here knows")
        causal = arguments.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if not causal and not self._bidirectional:
            raise UnsupportedModel("its attention is not causal, so that it cannot generate")
        scale = arguments.get("scaling")
        soft_cap = arguments.get("softcap")
        window = arguments.get("sliding_window")
        spec = AttentionSpec(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_size=q.shape[3],
            head_size_v=v.shape[3],
            scale=q.shape[3] ** -0.5 if scale is None else float(scale),
            mask="causal" if causal else "bidirectional",
            window=None if window is None else int(window),
            soft_cap=None if soft_cap is None else float(soft_cap),
        )
        self.calls.append(_Call(module, spec))
        return q.new_empty(1, q.shape[2], q.shape[1], v.shape[3])


def describe(
    model: nn.Module, body: nn.Module, num_layers: int, *, bidirectional: bool = False
) -> tuple[_Call, ...]:
    """Run ``body`` of the meta-device ``model`` once; one call for each attention layer, in order.

    ``bidirectional``: layers may attend both ways.
    :raises UnsupportedModel: layers that do not go through the registry once each, or want what a backend
        cannot give.
    """
    recorder = _Recorder(bidirectional=bidirectional)
    for module in model.modules():
        setattr(module, _SITE, recorder)
    ids = torch.zeros(1, 3, dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            body(input_ids=ids, position_ids=ids, use_cache=False)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UnsupportedModel(f"its forward cannot be described: {error}") from error
    finally:
        for module in model.modules():
            delattr(module, _SITE)
    modules = [id(call.module) for call in recorder.calls]
    if len(set(modules)) != len(modules):
        raise UnsupportedModel("a layer calls attention more than once")
    if len(modules) != num_layers:
        raise UnsupportedModel(
            f"{len(modules)} of its {num_layers} layers go through transformers' attention registry"
        )
    return tuple(recorder.calls)


def check_windows(calls: tuple[_Call, ...], config: Any) -> None:
    """Masks are not built, so a window must arrive with the call.

    :raises UnsupportedModel: the config tells of windows or other masks that calls do not.
    """
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if not isinstance(kinds, list | tuple):
        windowed = window is not None and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if windowed else "full_attention"] * len(calls)
    for index, (kind, call) in enumerate(zip(kinds, calls, strict=False)):
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(f"layer {index} is of type {kind!r}")
        if (kind == "sliding_attention") != (call.spec.window is not None):
            raise UnsupportedModel(
                f"layer {index} is of type {kind!r} but calls attention with window {call.spec.window}"
            )


def attach(calls: tuple[_Call, ...], step: CurrentStep, dtype: torch.dtype, device: str) -> None:
    """Give every attention layer its site."""
    outputs: dict[tuple[int, int], AttentionOutput] = {}
    for index, call in enumerate(calls):
        key = (call.spec.num_heads, call.spec.head_size_v)
        if key not in outputs:
            outputs[key] = AttentionOutput(*key, dtype, device)
        setattr(call.module, _SITE, LayerSite(Attention(index, call.spec, outputs[key]), step))


def _rows(heads: Tensor) -> Tensor:
    """``[1, heads, tokens, size]`` -> ``[tokens, heads, size]``, heads side by side in memory."""
    return heads[0].transpose(0, 1).contiguous()


__all__ = ["NAME", "CurrentStep", "attach", "check_windows", "describe", "register"]
