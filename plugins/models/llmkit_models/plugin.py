"""Entry point: the model implementations ``native`` and ``transformers``."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import Model, ModelParts, ModelSpec, RegisterModel
from llmkit_models.shape import FAMILIES, quantized, unsupported

_LENGTH_OF = {
    "longrope": "original_max_position_embeddings",
    "su": "original_max_position_embeddings",
    "dynamic": "max_position_embeddings",
}
"""Rope scaling that changes with the longest position in a batch -> the entry up to which it does not."""


@hookimpl
def register_models(register: RegisterModel) -> None:
    register("native", make_native, architectures=tuple(FAMILIES), refuses=refuses_native, priority=100)
    register("transformers", make_transformers, architectures=("*",), refuses=refuses_transformers)


def make_native(spec: ModelSpec, parts: ModelParts, options: Any) -> Model:
    from llmkit_models.llama import make

    return make(spec, parts, options)


def make_transformers(spec: ModelSpec, parts: ModelParts, options: Any) -> Model:
    from llmkit_models.transformers_model import make

    return make(spec, parts, options)


def refuses_native(spec: ModelSpec) -> str | None:
    if spec.world != 1:
        return "it runs on one rank"
    if spec.info.pooling is not None:
        return "it generates; it neither embeds nor classifies"
    return unsupported(spec.info.architecture, spec.info.config)


def refuses_transformers(spec: ModelSpec) -> str | None:
    config = spec.info.config
    if spec.world != 1:
        return "it runs on one rank"
    if spec.deterministic:
        return "operations of its own may round differently from batch to batch"
    if (reason := quantized(config)) is not None:
        return reason
    if config.get("auto_map") and config.get("model_type") is None and not spec.trust_remote_code:
        return "the checkpoint brings its own code; --trust-remote-code would run it"
    return _rope_too_long(config, spec.max_model_len)


def _rope_too_long(config: dict[str, Any], max_model_len: int) -> str | None:
    """Scalings that change with the longest position in a batch are right only where they do not."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        return f"its rope entry is {rope!r}, not an object"
    layers = [value for value in rope.values() if isinstance(value, dict)]  # one for each kind of layer
    for table in layers or [rope]:
        kind = table.get("rope_type") or table.get("type")
        if kind not in _LENGTH_OF:
            continue
        key = _LENGTH_OF[kind]
        limit = table.get(key) or config.get(key)
        if not isinstance(limit, int):
            return f"rope scaling {kind!r} needs {key}, which its config lacks"
        if max_model_len > limit:
            return (
                f"rope scaling {kind!r} changes with the longest sequence in a batch; "
                f"set --max-model-len {limit}"
            )
    return None


__all__ = ["make_native", "make_transformers", "refuses_native", "refuses_transformers", "register_models"]
