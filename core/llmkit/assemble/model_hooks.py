"""The ``prepare_model`` hooks that run in this process's workers."""

from __future__ import annotations

from typing import Any

from llmkit.contracts import ModelDraft, ModelHook
from llmkit.plugins import Plugins


def model_hooks(plugins: Plugins) -> tuple[ModelHook, ...]:
    """Those of built-ins and enabled plugins, in order."""
    return tuple(
        ModelHook(implementation.plugin, _call_with_model(implementation))
        for implementation in plugins.implementations("prepare_model")
    )


def _call_with_model(implementation: Any) -> Any:
    def prepare(draft: ModelDraft) -> None:
        implementation(draft=draft)

    return prepare
