"""Models of transformers that embed or classify: a body alone, or with its head over pooled states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from llmkit import EngineError, UnsupportedModel
from llmkit.contracts import ModelInput, ModelParts, ModelSpec, PoolingSpec, StepContext, WeightRef
from llmkit_models import hf_load
from llmkit_models.transformers_model import TransformersModel, build, read_config, with_body

_MAKERS: dict[str, type[Any]] = {
    "none": AutoModel,
    "sequence": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
}


class PoolingTransformersModel(TransformersModel):
    """Hidden states come from the body; a head is the model's own forward over a stand-in body that returns
    pooled states as sequences of one token, of which first, last and mean are the same.
    """

    _bidirectional = True

    def __init__(self, spec: ModelSpec, parts: ModelParts) -> None:
        assert spec.info.pooling is not None
        self._pooling: PoolingSpec = spec.info.pooling
        super().__init__(spec, parts)
        self._offset = _position_offset(self._body)
        self._takes_types = "token_type_ids" in inspect.signature(self._body.forward).parameters
        self._padding = self._model.config.get_text_config().pad_token_id
        pooler = getattr(self._body, "pooler", None)
        self._stand_in.pooler = pooler if isinstance(pooler, nn.Module) else None

    def load(self, weights: Iterable[WeightRef], on_weight: Callable[[WeightRef], None]) -> None:
        without_head = self._pooling.head == "none"
        kept = (ref for ref in weights if not ref.name.endswith("position_ids"))  # of old checkpoints
        hf_load.load(
            self._model,
            self._method,
            kept,
            on_weight,
            self._dtype,
            self._spec.device,
            without_head=without_head,
        )
        if not without_head:
            self._tail = with_body(self._model, self._body, self._stand_in)
        self._finish_load(avoid=self._padding)

    def logits(self, hidden: Tensor) -> Tensor:
        """:raises EngineError: always."""
        raise EngineError("a model that pools has no logits of next tokens")

    @torch.inference_mode()
    def pool(self, states: Tensor) -> Tensor:
        """As ``contracts.PoolingModel``."""
        if self._padding is None and self._pooling.head == "sequence":
            # Without a padding token transformers' decoders classify one text at a time.
            return torch.cat([self._head(states[row : row + 1]) for row in range(len(states))])
        return self._head(states)

    def run(self, inputs: ModelInput, ctx: StepContext) -> Tensor:
        """For the probe: hidden states, or logits of each token or sequence."""
        hidden = self.forward(inputs, ctx, None).hidden.float()
        match self._pooling.head:
            case "none":
                return hidden
            case "token":
                return self.pool(hidden)
        starts = (inputs.positions == 0).nonzero().flatten().tolist()
        ends = [*starts[1:], len(hidden)]
        states = [self._state(hidden[start:end]) for start, end in zip(starts, ends, strict=True)]
        return self.pool(torch.stack(states))

    def run_own(self, ids: Tensor, window: int | None) -> Tensor:
        """For the probe: as :meth:`run`, through the model's own forward."""
        output = self._own_output(ids, window)
        result: Tensor = output[0] if self._pooling.head == "none" else output.logits
        return result.float() if self._pooling.head == "sequence" else result[0].float()

    def _state(self, hidden: Tensor) -> Tensor:
        match self._pooling.type:
            case "cls":
                return hidden[0]
            case "last":
                return hidden[-1]
            case "mean":
                return hidden.mean(0)

    def _head(self, states: Tensor) -> Tensor:
        """``[rows, hidden] -> float32 [rows, labels]``"""
        assert self._tail is not None, "it has no head, or weights are not loaded"
        self._stand_in.hidden = states.to(self._dtype).unsqueeze(1)
        ids = torch.full((len(states), 1), 1 if self._padding == 0 else 0, device=states.device)
        logits: Tensor = self._tail(input_ids=ids).logits
        self._stand_in.hidden = None
        return logits.reshape(len(states), -1).float()

    def _build(self) -> PreTrainedModel:
        """:raises UnsupportedModel: transformers has no such model of this config."""
        model = build(self._spec, _MAKERS[self._pooling.head], read_config(self._spec), self._dtype)
        architecture = self._spec.info.architecture
        if self._pooling.head != "none" and type(model).__name__ != architecture:
            raise UnsupportedModel(f"as a classifier transformers builds {type(model).__name__}")
        if self._pooling.head == "none" and hasattr(model, "pooler"):
            setattr(model, "pooler", None)  # noqa: B010 - its result is not asked for
        return model

    def _find_body(self) -> nn.Module:
        body: nn.Module = self._model.base_model
        if body is self._model and self._pooling.head != "none":
            raise UnsupportedModel("its body cannot be told from its head")
        return body

    def _arguments(self, inputs: ModelInput) -> dict[str, Tensor]:
        given = super()._arguments(inputs)
        if self._offset:
            given["position_ids"] = given["position_ids"] + self._offset
        if inputs.token_types is not None and self._takes_types:
            given["token_type_ids"] = inputs.token_types.unsqueeze(0)
        return given


def _position_offset(body: nn.Module) -> int:
    """RoBERTa's positions begin behind the padding token's."""
    for module in body.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.padding_idx + 1
    return 0


__all__ = ["PoolingTransformersModel"]
