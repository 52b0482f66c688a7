"""Entry point: the model implementations ``native`` and ``transformers``."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import Model, ModelParts, ModelSpec, RegisterModel
from llmkit_models.shape import FAMILIES, unsupported


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
    return unsupported(spec.info.architecture, spec.info.config)


def refuses_transformers(spec: ModelSpec) -> str | None:
    config = spec.info.config
    if spec.world != 1:
        return "it runs on one rank"
    if spec.deterministic:
        return "operations of its own may round differently from batch to batch"
    if config.get("quantization_config") is not None:
        return f"weights quantized by {config['quantization_config'].get('quant_method')!r} are not supported"
    if config.get("auto_map") and config.get("model_type") is None and not spec.trust_remote_code:
        return "the checkpoint brings its own code; --trust-remote-code would run it"
    return _rope_too_long(config, spec.max_model_len)


def _rope_too_long(config: dict[str, Any], max_model_len: int) -> str | None:
    """Scalings that change with the longest position in a batch are right only where they do not."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    if kind in ("longrope", "su"):
        limit = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    elif kind == "dynamic":
        limit = config.get("max_position_embeddings")
    else:
        return None
    if isinstance(limit, int) and max_model_len <= limit:
        return None
    return f"rope scaling {kind!r} changes with the longest sequence in a batch; set --max-model-len {limit}"


__all__ = ["make_native", "make_transformers", "refuses_native", "refuses_transformers", "register_models"]
