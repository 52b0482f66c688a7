"""Any causal language model of transformers whose layers take their attention from its registry."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from llmkit import UnsupportedModel
from llmkit.contracts import (
    LayerTap,
    ModelInput,
    ModelParts,
    ModelSpec,
    ModelState,
    StepContext,
    WeightRef,
    nearest,
)
from llmkit_models import hf_attention, hf_linear, hf_load
from llmkit_models.hf_probe import probe


def make(spec: ModelSpec, parts: ModelParts, options: Any) -> TransformersModel:
    """:raises UnsupportedModel: by name, with what about it cannot be served."""
    hf_attention.register()
    try:
        if spec.info.pooling is not None:
            from llmkit_models.hf_pooling import PoolingTransformersModel

            return PoolingTransformersModel(spec, parts)
        return TransformersModel(spec, parts)
    except UnsupportedModel as error:
        raise _unsupported(spec, error) from error


class TransformersModel:
    """Runs the model's own code over a step's tokens packed into one row ``[1, tokens]``.

    Attention goes to the backend and linear layers to the linear method. Logits come from
    the model's own causal-LM forward over a stand-in body that returns the given hidden states, so caps
    and scales behind the head are the model's.
    """

    _bidirectional = False
    """Whether layers may attend both ways."""

    def __init__(self, spec: ModelSpec, parts: ModelParts) -> None:
        self._spec = spec
        self._method = parts.linear
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._step = hf_attention.CurrentStep()
        self._model = self._build()
        self._body = self._find_body()
        config = self._model.config.get_text_config()
        num_layers = self._num_layers = int(config.num_hidden_layers)
        if spec.world != 1 or spec.layers not in ((0, num_layers), (0, 0)):
            raise UnsupportedModel("it runs whole, on one rank")
        with _describable(self._model):
            calls = hf_attention.describe(
                self._model, self._body, num_layers, bidirectional=self._bidirectional
            )
        hf_attention.check_windows(calls, config)
        hf_attention.attach(calls, self._step, self._dtype, spec.device)
        self.attention = tuple(call.spec for call in calls)
        self.vocab_size = _rows_of_embedding(self._model)
        self._stand_in = _StandIn()
        self._tail: nn.Module | None = None
        self._no_ids = torch.zeros(1, 1, dtype=torch.long, device=spec.device)

    def tap(self, layer: int, tap: LayerTap) -> None:
        """:raises ValueError: the model has no such layer, or none that can be found."""
        layers = _layers(self._body, self._num_layers)
        if not 0 <= layer < len(layers):
            raise ValueError(f"there is no layer {layer} here; there are 0 to {len(layers) - 1}")

        def hook(module: nn.Module, given: Any, output: Any) -> Any:
            if self._step.ctx is None:
                return None
            stream = output[0] if isinstance(output, tuple) else output
            added = tap(stream.squeeze(0), self._step.ctx)
            if added is None:
                return None
            changed = stream + added
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        layers[layer].register_forward_hook(hook)

    @property
    def weight_bytes(self) -> int:
        return hf_linear.resident_bytes(self._model)

    def load(self, weights: Iterable[WeightRef], on_weight: Callable[[WeightRef], None]) -> None:
        hf_load.load(self._model, self._method, weights, on_weight, self._dtype, self._spec.device)
        self._tail = with_body(self._model, self._body, self._stand_in)
        self._finish_load()

    def _finish_load(self, avoid: int | None = None) -> None:
        """:raises UnsupportedModel: it does not do through our attention what it does through its own."""
        for rotary, _ in _length_dependent(self._model):
            rotary.rope_type = "default"
        try:
            probe(self, self.attention, self.vocab_size, self._dtype, self._spec.device, avoid=avoid)
        except UnsupportedModel as error:
            raise _unsupported(self._spec, error) from error

    @torch.inference_mode()
    def forward(self, inputs: ModelInput, ctx: StepContext, state: ModelState | None) -> ModelState:
        self._step.ctx = ctx
        try:
            output = self._body(**self._arguments(inputs), use_cache=False)
        finally:
            self._step.ctx = None
        self._stand_in.kind = type(output)
        return ModelState(output[0].squeeze(0))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        self._stand_in.hidden = hidden.unsqueeze(0)
        assert self._tail is not None, "weights are not loaded"
        output = self._tail(input_ids=self._no_ids, use_cache=False)
        self._stand_in.hidden = None
        logits: Tensor = output.logits
        return logits[0].float()

    def _build(self) -> PreTrainedModel:
        """On the meta device. :raises UnsupportedModel: it is no causal language model."""
        config = read_config(self._spec)
        if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", False):
            raise UnsupportedModel("its attention is not causal")
        model = build(self._spec, AutoModelForCausalLM, config, self._dtype)
        if type(model).__name__ != self._spec.info.architecture:
            raise UnsupportedModel(f"as a causal language model transformers builds {type(model).__name__}")
        if _decoder(model) is model:
            raise UnsupportedModel("its body cannot be told from its head")
        return model

    def _find_body(self) -> nn.Module:
        """The part that turns tokens into hidden states."""
        return _decoder(self._model)

    def _arguments(self, inputs: ModelInput) -> dict[str, Tensor]:
        """Of the body's forward."""
        positions = {"position_ids": inputs.positions.unsqueeze(0)}
        if inputs.embeddings is not None:
            return {"inputs_embeds": inputs.embeddings.unsqueeze(0), **positions}
        assert inputs.token_ids is not None
        return {"input_ids": inputs.token_ids.unsqueeze(0), **positions}

    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        """For the probe: logits of every token."""
        return self.logits(self.forward(inputs, ctx, None).hidden)

    @property
    def window(self) -> int | None:
        """For the probe: what the model's own masks are made from."""
        window = getattr(self._model.config.get_text_config(), "sliding_window", None)
        return None if window is None else int(window)

    @torch.inference_mode()
    def run_own(self, ids: Tensor, window: int | None) -> Tensor:
        """For the probe: logits of the model's own forward with eager attention and this window."""
        logits: Tensor = self._own_output(ids, window).logits
        return logits[0].float()

    def _own_output(self, ids: Tensor, window: int | None) -> Any:
        config, kept = self._model.config.get_text_config(), self.window
        self._model.set_attn_implementation("eager")
        if kept is not None:
            config.sliding_window = window
        try:
            output = self._model(input_ids=ids.unsqueeze(0), use_cache=False)
        finally:
            if kept is not None:
                config.sliding_window = kept
            self._model.set_attn_implementation(hf_attention.NAME)
        return output


def _layers(body: nn.Module, count: int) -> nn.ModuleList:
    """The decoder layers: the one list of so many modules that the body itself has."""
    found = [m for m in body.children() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(found) != 1:
        raise ValueError(f"{type(body).__name__} has {len(found)} lists of {count} layers; one can be tapped")
    return found[0]


class _StandIn(nn.Module):
    """In the place of a model's body: returns what it was given, in the body's own output type."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        self.pooler: nn.Module | None = None
        """The body's own, of what it gives a head."""
        self.kind: Callable[..., Any] = tuple

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.pooler is None:
            return self.kind(last_hidden_state=self.hidden)
        return self.kind(last_hidden_state=self.hidden, pooler_output=self.pooler(self.hidden))


def build(spec: ModelSpec, maker: type[Any], config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """What ``maker``, one of transformers' AutoModels, makes of a config, on the meta device.

    :raises UnsupportedModel: in transformers' words.
    """
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": hf_attention.NAME}
    try:
        with torch.device("meta"):
            model: PreTrainedModel = maker.from_config(
                config, trust_remote_code=spec.trust_remote_code, **options
            )
    except (ValueError, TypeError, AttributeError, KeyError, ImportError) as error:
        if error.args == (hf_attention.NAME,):  # a table of attention classes of the model's own
            raise UnsupportedModel("it does not take its attention from transformers' registry") from error
        raise UnsupportedModel(f"transformers cannot build it: {error}") from error
    model.train(False)
    return model


def read_config(spec: ModelSpec) -> PretrainedConfig:
    """From the checkpoint's own entries; nothing is fetched."""
    entries = dict(spec.info.config)
    if spec.trust_remote_code and "auto_map" in entries:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            spec.files.path, trust_remote_code=True, local_files_only=True
        )
        return config
    model_type = str(entries.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        hint = nearest(model_type, CONFIG_MAPPING.keys())
        known = f"; the nearest it knows is {hint!r}" if hint else ""
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no model_type {model_type!r}{known}"
        )
    try:
        return CONFIG_MAPPING[model_type].from_dict(entries)
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise UnsupportedModel(f"transformers cannot read its config: {error}") from error


def _rows_of_embedding(model: PreTrainedModel) -> int:
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0])


def _decoder(model: PreTrainedModel) -> nn.Module:
    """The part that turns tokens into hidden states."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    return decoder


def with_body(model: PreTrainedModel, body: nn.Module, stand_in: nn.Module) -> nn.Module:
    """The same model, weights shared, with another body."""
    path = next(name for name, module in model.named_modules() if module is body).split(".")
    return _replaced(model, path, stand_in)


def _replaced(module: nn.Module, path: list[str], new: nn.Module) -> nn.Module:
    """A shallow copy of ``module`` in which the module at ``path`` is ``new``."""
    name, *rest = path
    child = module.get_submodule(name)
    other = copy.copy(module)
    other._modules = {**module._modules, name: _replaced(child, rest, new) if rest else new}
    return other


@contextmanager
def _describable(model: PreTrainedModel) -> Iterator[None]:
    """Within it nothing looks at values, which meta tensors do not have: longest positions, experts."""
    rotaries, experts = _length_dependent(model), model.get_experts_implementation()
    for rotary, _ in rotaries:
        rotary.rope_type = "default"
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(experts)
        for rotary, kind in rotaries:
            rotary.rope_type = kind


def _length_dependent(model: nn.Module) -> list[tuple[Any, Any]]:
    """Rope modules that may change with the longest position; within the original length none does."""
    return [
        (module, module.rope_type)
        for module in model.modules()
        if getattr(module, "rope_type", None) in ("dynamic", "longrope")
    ]


def _unsupported(spec: ModelSpec, error: UnsupportedModel) -> UnsupportedModel:
    return UnsupportedModel(f"--model-impl transformers cannot run {spec.info.architecture}: {error}")


__all__ = ["TransformersModel", "build", "make", "read_config", "with_body"]
