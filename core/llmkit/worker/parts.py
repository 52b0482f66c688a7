"""Which parts a worker is built from: device, dtype, threads, and a choice of every component."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from llmkit.config.machine import cores
from llmkit.contracts import (
    AttentionBackend,
    BackendSpec,
    Choice,
    ExecutorSpec,
    KVCacheSpec,
    LinearEnv,
    LinearMethod,
    LoaderSpec,
    Model,
    ModelParts,
    ModelSpec,
    OpsEnv,
    WeightLoader,
)
from llmkit.errors import StartupError
from llmkit.nn import bind_ops
from llmkit.worker.pooler import HiddenPooler

_UNNAMED_CONTEXT = 2048
"""Positions of a model whose config names no limit: what the engine serves then."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and how a worker computes; every ``auto`` resolved."""

    device: str
    dtype: str
    threads: int

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)


@dataclass(slots=True)
class Parts:
    """The components of one worker, made for each other, and why each was chosen."""

    loader: WeightLoader
    model: Model
    backend: AttentionBackend
    kv_specs: tuple[KVCacheSpec, ...]
    row_invariant: bool
    model_spec: ModelSpec
    choices: tuple[Choice, ...]
    pooler: HiddenPooler | None = None
    """Of a model that pools."""


def resolve_machine(spec: ExecutorSpec) -> Machine:
    """:raises StartupError: the device is not one that this version runs on."""
    parallel, model = spec.config.parallel, spec.config.model
    if parallel.device == "cuda":
        raise StartupError("--device cuda: this version runs on the CPU; use --device cpu or auto")
    dtype = "float32" if model.dtype == "auto" else model.dtype
    return Machine("cpu", dtype, parallel.threads or cores())


def choose_parts(spec: ExecutorSpec, machine: Machine) -> Parts:
    """Choose and make loader, linear method, operations, model and attention backend.

    :raises StartupError: nothing can serve this, or ``--deterministic`` is on and a part is not
        row-invariant.
    """
    model_config, cache, parallel = spec.config.model, spec.config.cache, spec.config.parallel
    device, dtype, threads = machine.device, machine.dtype, machine.threads
    deterministic = model_config.deterministic
    choices = [Choice("dtype", dtype, f"on {device} with {threads} threads")]

    def make(kind: str, requested: str, component_spec: Any, *more: Any) -> Any:
        choice = spec.components.choose(kind, requested, component_spec)
        choices.append(choice)
        return spec.components.create(kind, choice.name, component_spec, *more)

    loader: WeightLoader = make(
        "loader",
        model_config.load_format,
        LoaderSpec(spec.files, model_config.hf_overrides or {}, seed=model_config.seed),
    )
    linear: LinearMethod = make(
        "linear",
        model_config.quantization,
        LinearEnv(device, dtype, spec.info.encoding, deterministic, threads),
    )
    linear_choice = choices[-1]
    ops, op_choices = bind_ops(spec.components, OpsEnv(device, dtype, deterministic, threads))
    choices.extend(op_choices)
    model_spec = _model_spec(spec, machine)
    model: Model = make("model", model_config.model_impl, model_spec, ModelParts(linear, ops))
    backend: AttentionBackend = make(
        "attention",
        parallel.attn,
        BackendSpec(
            layers=model.attention,
            dtype=dtype,
            kv_cache_dtype=cache.kv_cache_dtype,
            block_size=cache.block_size,
            device=device,
            deterministic=deterministic,
            num_threads=threads,
        ),
    )
    if deterministic:
        _check_row_invariant((linear, linear_choice), (backend, choices[-1]))
    return Parts(
        loader=loader,
        model=model,
        backend=backend,
        kv_specs=tuple(backend.kv_cache_spec(layer) for layer in range(len(model.attention))),
        row_invariant=deterministic,  # operations promise it only then
        model_spec=model_spec,
        choices=tuple(choices),
        pooler=None if spec.info.pooling is None else HiddenPooler(model, spec.info.pooling, spec.files.root),
    )


def _check_row_invariant(*parts: tuple[LinearMethod | AttentionBackend, Choice]) -> None:
    """A plugin may take ``deterministic`` and not keep to it."""
    for part, choice in parts:
        if not part.row_invariant:
            raise StartupError(
                f"--deterministic: {choice.kind} {choice.name!r} is not row-invariant; leave its flag at auto"
            )


def _model_spec(spec: ExecutorSpec, machine: Machine) -> ModelSpec:
    config, info = spec.config.model, spec.info
    longest = config.max_model_len or info.context_length or _UNNAMED_CONTEXT
    if longest < 2:
        raise StartupError(
            f"--max-model-len: a context of {longest} has no room for a prompt and an answer; 2 is the least"
        )
    layers = info.config.get("num_hidden_layers") or info.config.get("n_layer") or 0
    return ModelSpec(
        info=info,
        files=spec.files,
        dtype=machine.dtype,
        device=machine.device,
        max_model_len=longest,
        layers=(0, int(layers)),
        trust_remote_code=config.trust_remote_code,
        deterministic=config.deterministic,
    )
