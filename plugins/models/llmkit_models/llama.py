"""The Llama family as one module: Llama, SmolLM, Mistral, Qwen2, Qwen3, SmolLM3.

q, k and v are one product, gate and up another; the residual stream is one tensor updated in place.
Layers are plain objects: on a small model a decode step is mostly the cost of calling, so the
hot path holds nothing that could be done once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from llmkit import UnsupportedModel
from llmkit.contracts import (
    AttentionSpec,
    LayerTap,
    ModelInput,
    ModelParts,
    ModelSpec,
    ModelState,
    StepContext,
    WeightRef,
)
from llmkit.nn import (
    Attention,
    AttentionOutput,
    Embedding,
    Linear,
    LMHead,
    RMSNorm,
    RopeSpec,
    Rotary,
    WeightMap,
)
from llmkit_models.shape import LlamaShape, read_shape, unsupported


def make(spec: ModelSpec, parts: ModelParts, options: Any) -> NativeLlama:
    """:raises UnsupportedModel: a config this family does not cover."""
    reason = unsupported(spec.info.architecture, spec.info.config)
    if reason is not None:
        raise UnsupportedModel(f"--model-impl native cannot run {spec.info.architecture}: {reason}")
    return NativeLlama(read_shape(spec.info.architecture, spec.info.config), spec, parts)


class NativeLlama:
    """One pipeline stage of a model of the family; owns its weights and scratch."""

    def __init__(self, shape: LlamaShape, spec: ModelSpec, parts: ModelParts) -> None:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        first, end = spec.layers
        self.vocab_size = shape.vocab_size
        self._weights = WeightMap()
        self._linears: list[Linear] = []
        self._others: list[Embedding | RMSNorm] = []
        self._rotary = Rotary(_rope_spec(shape), spec.max_model_len, dtype, spec.device)
        output = AttentionOutput(shape.num_heads, shape.head_size, dtype, spec.device)
        build = _Builder(shape, parts, self._weights, self._linears, self._others, dtype, spec.device)
        self._stage = spec.layers
        self._layers: list[_Layer | _Tapped] = [
            build.layer(index, index - first, output) for index in range(first, end)
        ]
        self.attention = tuple(layer.attention.spec for layer in self._layers)
        starts, ends = first == 0, end == shape.num_layers
        self._head = build.head() if ends or (starts and shape.tied) else None
        self._norm = build.norm("model.norm") if ends else None
        self._embed: Callable[[Tensor], Tensor] | None = None
        if starts:
            self._embed = self._head.embed if shape.tied and self._head else build.embedding()
        self._weights.ignore(_is_derived)
        if shape.tied:
            self._weights.ignore(lambda name: name == "lm_head.weight")
        if not (starts and ends):
            self._weights.ignore(_of_other_stage(shape, first, end))

    @property
    def weight_bytes(self) -> int:
        held = (*self._linears, *self._others, self._rotary)
        return sum(part.resident_bytes for part in held)

    def tap(self, layer: int, tap: LayerTap) -> None:
        """:raises ValueError: this stage has no such layer."""
        first, end = self._stage
        if not first <= layer < end:
            raise ValueError(f"there is no layer {layer} here; there are {first} to {end - 1}")
        self._layers[layer - first] = _Tapped(self._layers[layer - first], tap)

    def load(self, weights: Iterable[WeightRef], on_weight: Callable[[WeightRef], None]) -> None:
        self._weights.load(weights, on_weight)
        for linear in self._linears:
            linear.finish()

    @torch.inference_mode()
    def forward(self, inputs: ModelInput, ctx: StepContext, state: ModelState | None) -> ModelState:
        residual = self._enter(inputs) if state is None else state.residual
        x = None if state is None else state.hidden
        assert residual is not None
        cos, sin = self._rotary.rows(inputs.positions)
        for layer in self._layers:
            x = layer.forward(x, residual, cos, sin, ctx)
        assert x is not None
        if self._norm is None:
            return ModelState(x, residual)
        return ModelState(self._norm.add(x, residual))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        assert self._head is not None, "this stage has no output head"
        return self._head.logits(hidden)

    def _enter(self, inputs: ModelInput) -> Tensor:
        """The residual stream's beginning: a fresh tensor, as layers add into it."""
        if inputs.embeddings is not None:
            return inputs.embeddings.clone()
        assert inputs.token_ids is not None
        assert self._embed is not None, "this stage does not start with tokens"
        return self._embed(inputs.token_ids)


class _Layer:
    """One decoder layer."""

    __slots__ = (
        "_down",
        "_gate_up",
        "_k_norm",
        "_kv_end",
        "_num_heads",
        "_out",
        "_pre_attention",
        "_pre_mlp",
        "_q_norm",
        "_qkv",
        "_rope",
        "_silu_mul",
        "_split",
        "attention",
    )

    def __init__(self, build: _Builder, index: int, attention: Attention) -> None:
        shape, prefix = build.shape, f"model.layers.{index}"
        self.attention = attention
        self._num_heads = shape.num_heads
        self._kv_end = shape.num_heads + shape.num_kv_heads
        self._split = (self._kv_end + shape.num_kv_heads, shape.head_size)
        self._rope = build.parts.ops.rope if shape.ropes[index] else None
        self._silu_mul = build.parts.ops.silu_mul
        self._pre_attention = build.norm(f"{prefix}.input_layernorm")
        self._pre_mlp = build.norm(f"{prefix}.post_attention_layernorm")
        self._q_norm = self._k_norm = None
        if shape.qk_norm:
            self._q_norm = build.norm(f"{prefix}.self_attn.q_norm", shape.head_size)
            self._k_norm = build.norm(f"{prefix}.self_attn.k_norm", shape.head_size)
        q, kv = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self._qkv = build.linear(
            f"{prefix}.self_attn",
            ("q_proj", "k_proj", "v_proj"),
            shape.hidden_size,
            (q, kv, kv),
            shape.qkv_bias,
        )
        self._out = build.linear(
            f"{prefix}.self_attn", ("o_proj",), q, (shape.hidden_size,), shape.output_bias
        )
        self._gate_up = build.linear(
            f"{prefix}.mlp",
            ("gate_proj", "up_proj"),
            shape.hidden_size,
            (shape.mlp_size,) * 2,
            shape.mlp_bias,
        )
        self._down = build.linear(
            f"{prefix}.mlp", ("down_proj",), shape.mlp_size, (shape.hidden_size,), shape.mlp_bias
        )

    def forward(
        self, x: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, ctx: StepContext
    ) -> Tensor:
        """``x`` is the previous layer's output, not yet in ``residual``; None in the first layer."""
        norm = self._pre_attention
        qkv = self._qkv(norm(residual) if x is None else norm.add(x, residual))
        heads = qkv.view(-1, *self._split)
        q, k, v = (
            heads[:, : self._num_heads],
            heads[:, self._num_heads : self._kv_end],
            heads[:, self._kv_end :],
        )
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._q_norm.heads(q), self._k_norm.heads(k)
        if self._rope is not None:
            self._rope(q, k, cos, sin)
        attended = self._out(self.attention(q, k, v, ctx))
        return self._down(self._silu_mul(self._gate_up(self._pre_mlp.add(attended, residual))))


class _Tapped:
    """A layer and what a plugin does to the residual stream behind it."""

    __slots__ = ("_layer", "_tap", "attention")
    attention: Attention

    def __init__(self, layer: _Layer | _Tapped, tap: LayerTap) -> None:
        self.attention = layer.attention
        self._layer = layer
        self._tap = tap

    def forward(
        self, x: Tensor | None, residual: Tensor, cos: Tensor, sin: Tensor, ctx: StepContext
    ) -> Tensor:
        out = self._layer.forward(x, residual, cos, sin, ctx)
        added = self._tap(residual + out, ctx)
        return out if added is None else out + added


class _Builder:
    """Makes parts and notes where their weights come from."""

    def __init__(
        self,
        shape: LlamaShape,
        parts: ModelParts,
        weights: WeightMap,
        linears: list[Linear],
        others: list[Embedding | RMSNorm],
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.shape = shape
        self.parts = parts
        self._weights = weights
        self._linears = linears
        self._others = others
        self._dtype = dtype
        self._device = device

    def layer(self, index: int, local: int, output: AttentionOutput) -> _Layer:
        shape = self.shape
        spec = AttentionSpec(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            head_size_v=shape.head_size,
            scale=shape.head_size**-0.5,
            window=shape.windows[index],
        )
        return _Layer(self, index, Attention(local, spec, output))

    def linear(
        self, prefix: str, names: tuple[str, ...], in_features: int, out_parts: tuple[int, ...], bias: bool
    ) -> Callable[[Tensor], Tensor]:
        """The product with a fused layer's weights, ready to call."""
        name = f"{prefix}.{'+'.join(names)}"
        linear = Linear(self.parts.linear, name, in_features, out_parts, bias=bias)
        linear.map_weights(self._weights, *(f"{prefix}.{part}" for part in names))
        self._linears.append(linear)
        return linear.apply

    def norm(self, name: str, size: int | None = None) -> RMSNorm:
        norm = RMSNorm(
            self.parts.ops, size or self.shape.hidden_size, self.shape.eps, self._dtype, self._device
        )
        norm.map_weights(self._weights, name)
        self._others.append(norm)
        return norm

    def embedding(self) -> Embedding:
        embedding = Embedding(self.shape.vocab_size, self.shape.hidden_size, self._dtype, self._device)
        embedding.map_weights(self._weights, "model.embed_tokens")
        self._others.append(embedding)
        return embedding

    def head(self) -> LMHead:
        shape = self.shape
        head = LMHead(self.parts.linear, shape.vocab_size, shape.hidden_size, tied=shape.tied)
        head.map_weights(self._weights, "model.embed_tokens" if self.shape.tied else "lm_head")
        self._linears.append(head)
        return head


def _rope_spec(shape: LlamaShape) -> RopeSpec:
    return RopeSpec(
        shape.head_size, shape.rope_base, shape.rope_type, shape.rope_parameters, shape.max_position
    )


def _is_derived(name: str) -> bool:
    """Buffers that old checkpoints store although the config determines them."""
    return name.endswith((".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"))


def _of_other_stage(shape: LlamaShape, first: int, end: int) -> Callable[[str], bool]:
    others = tuple(f"model.layers.{i}." for i in range(shape.num_layers) if not first <= i < end)
    ends = ("model.embed_tokens.", "model.norm.", "lm_head.")
    return lambda name: name.startswith(others + ends)


__all__ = ["NativeLlama", "make"]
