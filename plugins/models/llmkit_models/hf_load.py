"""Weights into a transformers model that was built on the meta device.

Weights of linear layers go straight from the checkpoint to the linear method, so that none is ever
held twice. The rest takes transformers' own way, which knows its conversions (fused experts, renamed
parts): this file is the only one that uses functions of transformers outside its public names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from llmkit import CheckpointError, StartupError
from llmkit.contracts import LinearMethod, WeightRef
from llmkit.nn import complain
from llmkit_models import hf_linear

_LACKS = (
    f"--model-impl transformers: transformers {transformers.__version__} lacks what weights are loaded with "
    "({}); install a version that was tried, 5.17 to 5.24"
)

try:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        convert_and_load_state_dict_in_model,
        rename_source_key,
    )
    from transformers.modeling_utils import LoadStateDictConfig
except ImportError as error:
    raise StartupError(_LACKS.format(error)) from error

_METHODS = (
    "_adjust_missing_and_unexpected_keys",
    "_initialize_missing_keys",
    "_move_missing_keys_from_meta_to_device",
)
"""Of every model of transformers; not public."""
_PLAIN = ("float32", "bfloat16", "float16")


def load(
    model: PreTrainedModel,
    method: LinearMethod,
    weights: Iterable[WeightRef],
    on_weight: Callable[[WeightRef], None],
    dtype: torch.dtype,
    device: str,
    *,
    without_head: bool = False,
) -> None:
    """Fill ``model`` and put every linear layer into the hands of ``method``.

    ``without_head``: the checkpoint may have a head that the model has not.
    :raises CheckpointError: a weight is missing, left over or of the wrong shape.
    """
    _check_methods(model)
    mapping = get_model_conversion_mapping(model)
    targets = _Targets(model, mapping)
    rest: dict[str, _Lazy] = {}
    for ref in weights:
        if not targets.claim(ref):
            rest[ref.name] = _Lazy(ref, dtype, on_weight)
    for name, refs in targets.complete(rest, dtype, on_weight):
        hf_linear.replace(model, name, method, refs["weight"], refs.get("bias"))
        for ref in refs.values():
            on_weight(ref)
    _load_rest(model, rest, mapping, dtype, device, without_head=without_head)
    hf_linear.replace_loaded(model, method)


def _check_methods(model: PreTrainedModel) -> None:
    """:raises StartupError: this version of transformers has none of that name."""
    missing = [name for name in _METHODS if not hasattr(model, name)]
    if missing:
        raise StartupError(_LACKS.format(", ".join(missing)))


class _Lazy:
    """A weight as transformers reads one: ``lazy[...]`` gives the tensor."""

    def __init__(self, ref: WeightRef, dtype: torch.dtype, on_weight: Callable[[WeightRef], None]) -> None:
        self._ref = ref
        self._dtype: torch.dtype = getattr(torch, ref.encoding) if ref.encoding in _PLAIN else dtype
        self._on_weight = on_weight

    def __getitem__(self, index: Any) -> Tensor:
        tensor = self._ref.dense(self._dtype)
        self._on_weight(self._ref)
        return tensor


class _Targets:
    """Which weights of the checkpoint are, as they are, the weight or bias of a linear layer."""

    def __init__(self, model: PreTrainedModel, mapping: list[Any]) -> None:
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._base = model.base_model_prefix
        self._expected = model.state_dict()
        tied = getattr(model, "all_tied_weights_keys", {})
        self._needs = {
            name: {part for part in ("weight", "bias") if f"{name}.{part}" in self._expected}
            for name, module in model.named_modules()
            if hf_linear.replaceable(module) and f"{name}.weight" not in tied
        }
        self._found: dict[str, dict[str, WeightRef]] = {name: {} for name in self._needs}

    def claim(self, ref: WeightRef) -> bool:
        """Whether ``ref`` belongs to a linear layer and fits it."""
        target, pattern = rename_source_key(
            ref.name, self._renamings, self._converters, self._base, self._expected
        )
        name, _, part = target.rpartition(".")
        if pattern is not None or part not in self._needs.get(name, ()):
            return False
        if tuple(ref.shape) != tuple(self._expected[target].shape) or part in self._found[name]:
            return False
        self._found[name][part] = ref
        return True

    def complete(
        self, rest: dict[str, _Lazy], dtype: torch.dtype, on_weight: Callable[[WeightRef], None]
    ) -> Iterator[tuple[str, dict[str, WeightRef]]]:
        """Layers that have all they need; the parts of others join ``rest``, to be missed there."""
        for name, refs in self._found.items():
            if set(refs) == self._needs[name]:
                yield name, refs
            else:
                rest |= {ref.name: _Lazy(ref, dtype, on_weight) for ref in refs.values()}


def _load_rest(
    model: PreTrainedModel,
    rest: dict[str, _Lazy],
    mapping: list[Any],
    dtype: torch.dtype,
    device: str,
    *,
    without_head: bool,
) -> None:
    """The way of ``from_pretrained``, which also computes buffers such as rope's frequencies."""
    config = LoadStateDictConfig(dtype=dtype, device_map={"": device}, weight_mapping=mapping)
    with _no_progress_bar():
        info, _ = convert_and_load_state_dict_in_model(model, rest, config)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    absent = info.missing_keys - tied
    model._adjust_missing_and_unexpected_keys(info)  # forgets what the model may do without
    complain(
        missing=info.missing_keys - tied,
        left_over=() if without_head else info.unexpected_keys,
        wrong=[f"{name} is {list(got)}, not {list(want)}" for name, got, want in info.mismatched_keys],
    )
    if info.conversion_errors:
        raise CheckpointError(f"weights could not be converted: {sorted(info.conversion_errors.items())[0]}")
    _initialize(model, absent, device)
    model.tie_weights(missing_keys=tied & info.missing_keys, recompute_mapping=False)


def _initialize(model: PreTrainedModel, absent: set[str], device: str) -> None:
    """Compute what no checkpoint holds: ``absent`` keys that may be, and buffers such as frequencies."""
    model._move_missing_keys_from_meta_to_device(list(absent), {"": device}, None, None)
    owners = {name.rpartition(".")[0] for name in absent}
    owners |= {name.rpartition(".")[0] for name, _ in model.named_non_persistent_buffers()}
    for name, module in model.named_modules():
        if name not in owners:
            module._is_hf_initialized = True
    model._initialize_missing_keys(False)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Transformers draws one; ours comes from ``on_weight``."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


__all__ = ["load"]
