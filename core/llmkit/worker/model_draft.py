"""What ``prepare_model`` hooks may do to a model that has its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from llmkit.contracts import Choice, LayerTap, Model, ModelHook, ModelSpec
from llmkit.errors import StartupError


def prepare_model(model: Model, spec: ModelSpec, hooks: Sequence[ModelHook]) -> tuple[Choice, ...]:
    """Run every hook in order; gives who touched the model and why, for the summary.

    :raises StartupError: a hook refused the model or failed, naming its plugin.
    """
    touched = []
    for hook in hooks:
        draft = _Draft(hook.plugin, model, spec)
        try:
            hook.function(draft)
        except StartupError:
            raise
        except Exception as error:
            raise StartupError(
                f"plugin {hook.plugin!r} failed to prepare the model: {type(error).__name__}: {error}"
            ) from error
        if draft.reasons:
            touched.append(Choice("prepare_model", hook.plugin, "; ".join(draft.reasons)))
    return tuple(touched)


class _Draft:
    """One plugin's view of the model; a ``ModelDraft``."""

    def __init__(self, plugin: str, model: Model, spec: ModelSpec) -> None:
        self.model = model
        self.spec = spec
        self.reasons: list[str] = []
        self._plugin = plugin

    def tap(self, layer: int, tap: LayerTap, why: str) -> None:
        tapped = getattr(self.model, "tap", None)
        if tapped is None:
            self.refuse("the model implementation has no taps; another --model-impl may have")
        try:
            tapped(layer, tap)
        except ValueError as error:
            self.refuse(str(error))
        self.reasons.append(f"layer {layer}: {why}")

    def refuse(self, message: str) -> NoReturn:
        raise StartupError(f"plugin {self._plugin!r} refuses the model: {message}")
