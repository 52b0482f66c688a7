"""Whether a model generates or pools, and how: from flags, the checkpoint's files and its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as replaced
from typing import Any, cast

from msgspec.structs import replace

from llmkit.config import Config, ModelConfig
from llmkit.contracts import CheckpointInfo
from llmkit.errors import UsageError
from llmkit.pooling import Activation, Head, PoolingSpec, PoolingType
from llmkit.text import listing

_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_POOLS = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification")
_HEADS: Mapping[str, Head] = {"ForSequenceClassification": "sequence", "ForTokenClassification": "token"}
_ROBERTAS = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "xmod", "data2vec-text"})
"""Their positions begin behind the padding token's, so that so many fewer tokens have one."""
_OPTIONS = ("pooling_type", "normalize", "dimensions")
_DIMENSIONS = "hidden_size", "n_embd", "d_model", "dim"


def resolve_runner(config: Config, info: CheckpointInfo) -> CheckpointInfo:
    """The same checkpoint with ``pooling`` settled: how it pools, or None if it generates.

    :raises UsageError: ``--pooler-config`` says what cannot be, or is given for a model that generates.
    """
    wanted = config.model.runner
    if wanted == "auto":
        wanted = "pooling" if _pools(info) else "generate"
    if wanted == "generate":
        if config.model.pooler_config is not None:
            raise UsageError("--pooler-config: this model generates; --runner pooling would have it pool")
        return replace(info, pooling=None)
    spec = info.pooling or _by_architecture(info)
    spec = replace(spec, size=spec.size or _hidden_size(info.config), max_length=_max_length(info, spec))
    return replace(info, pooling=_overridden(spec, config.model))


def with_room_for_prompts(config: Config, info: CheckpointInfo) -> Config:
    """Steps that hold the longest prompt, where prompts may have to be computed whole."""
    if info.pooling is None or info.pooling.type == "last":
        return config
    longest = config.model.max_model_len or info.context_length or 0
    budget = max(config.scheduler.max_num_batched_tokens, longest)
    return replaced(config, scheduler=replaced(config.scheduler, max_num_batched_tokens=budget))


def _pools(info: CheckpointInfo) -> bool:
    if info.pooling is not None:
        return True
    return info.architecture.endswith(_POOLS) and not info.architecture.endswith(_GENERATES)


def _by_architecture(info: CheckpointInfo) -> PoolingSpec:
    """What an architecture says by itself."""
    heads = [head for ending, head in _HEADS.items() if info.architecture.endswith(ending)]
    head: Head = heads[0] if heads else "none"
    config = info.config
    return PoolingSpec(
        type=_default_type(config, info.architecture, head),
        head=head,
        activation="none" if head == "none" else _activation(config, head),
        labels=() if head == "none" else _labels(config),
        matryoshka=bool(config.get("is_matryoshka") or config.get("matryoshka_dimensions")),
        dimensions=tuple(config.get("matryoshka_dimensions") or ()),
    )


def _default_type(config: Mapping[str, Any], architecture: str, head: Head) -> PoolingType:
    """Causal models say it all in the last token; encoders in the first one, unless a head is to look at
    all of them (ModernBERT)."""
    if _is_causal(config, architecture):
        return "last"
    if head == "none":
        return "cls"
    return "mean" if config.get("classifier_pooling") == "mean" else "cls"


def _is_causal(config: Mapping[str, Any], architecture: str) -> bool:
    """By what only decoders have: how they go on, or share heads."""
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        return False
    if architecture.endswith(_GENERATES):
        return True
    model_type = str(config.get("model_type"))
    if "bert" in model_type:
        return False
    return "num_key_value_heads" in config or model_type in ("gpt2", "gpt_neox", "opt", "bloom")


def _activation(config: Mapping[str, Any], head: Head) -> Activation:
    """As sentence-transformers' cross-encoders have it, or by the kind of problem."""
    stated = config.get("sentence_transformers")
    name = stated.get("activation_fn") if isinstance(stated, dict) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if isinstance(name, str):
        kind = name.rpartition(".")[2].lower()
        if kind in ("identity", "sigmoid", "softmax"):
            return "none" if kind == "identity" else cast("Activation", kind)
    problem = config.get("problem_type")
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification" or (head == "sequence" and _num_labels(config) == 1):
        return "sigmoid"
    return "softmax"


def _num_labels(config: Mapping[str, Any]) -> int:
    named = config.get("id2label")
    return len(named) if isinstance(named, dict) else int(config.get("num_labels") or 2)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    count = _num_labels(config)
    if not isinstance(named, dict):
        return tuple(f"LABEL_{index}" for index in range(count))
    return tuple(str(named.get(str(index), f"LABEL_{index}")) for index in range(count))


def _hidden_size(config: Mapping[str, Any]) -> int | None:
    return next((size for key in _DIMENSIONS if isinstance(size := config.get(key), int)), None)


def _max_length(info: CheckpointInfo, spec: PoolingSpec) -> int | None:
    config = info.config
    positions = config.get("max_position_embeddings")
    if config.get("model_type") not in _ROBERTAS or not isinstance(positions, int):
        return spec.max_length
    padding = config.get("pad_token_id")
    most = positions - (padding if isinstance(padding, int) else 1) - 1
    return most if spec.max_length is None else min(most, spec.max_length)


def _overridden(spec: PoolingSpec, config: ModelConfig) -> PoolingSpec:
    """``--pooler-config`` over what was found."""
    given = config.pooler_config or {}
    unknown = sorted(set(given) - set(_OPTIONS))
    if unknown:
        raise UsageError(f"--pooler-config: unknown {listing(unknown)}; it knows {listing(_OPTIONS)}")
    if (kind := given.get("pooling_type")) is not None:
        kind = str(kind).lower()
        if kind not in ("cls", "last", "mean"):
            raise UsageError(f"--pooler-config: pooling_type is {kind!r}; it may be CLS, LAST or MEAN")
        spec = replace(spec, type=kind)
    if (normalize := given.get("normalize")) is not None:
        if not isinstance(normalize, bool):
            raise UsageError(f"--pooler-config: normalize is {normalize!r}; it may be true or false")
        spec = replace(spec, normalize=normalize)
    if (dimensions := given.get("dimensions")) is not None:
        sizes = dimensions if isinstance(dimensions, list) else [dimensions]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise UsageError(f"--pooler-config: dimensions is {dimensions!r}; it may be a list of sizes")
        spec = replace(spec, matryoshka=True, dimensions=tuple(sizes))
    return spec
