"""llmkit: serve large language models; every part that differs between deployments is a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from llmkit.errors import (
    CheckpointError,
    ContextLengthExceeded,
    Draining,
    DuplicateName,
    EngineDead,
    EngineError,
    LlmkitError,
    ModelNotFound,
    OutOfMemory,
    OverBudget,
    PluginError,
    QueueFull,
    RequestError,
    RequestTimeout,
    Sleeping,
    StartupError,
    UnknownName,
    UnsupportedModel,
    UsageError,
)
from llmkit.types import FinishReason, SamplingParams
from llmkit.version import VERSION as __version__

if TYPE_CHECKING:
    from llmkit.llm import LLM

PLUGIN_API = (0, 1)
"""Version of the plugin contract, major and minor. Below 1.0 a new minor may break; from 1.0 on only
a new major may."""

hookimpl = pluggy.HookimplMarker("llmkit")
"""Marks a plugin module's function as the implementation of the hook of its name."""


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from llmkit.llm import LLM

        return LLM
    raise AttributeError(f"module 'llmkit' has no attribute {name!r}")


__all__ = [
    "LLM",
    "PLUGIN_API",
    "CheckpointError",
    "ContextLengthExceeded",
    "Draining",
    "DuplicateName",
    "EngineDead",
    "EngineError",
    "FinishReason",
    "LlmkitError",
    "ModelNotFound",
    "OutOfMemory",
    "OverBudget",
    "PluginError",
    "QueueFull",
    "RequestError",
    "RequestTimeout",
    "SamplingParams",
    "Sleeping",
    "StartupError",
    "UnknownName",
    "UnsupportedModel",
    "UsageError",
    "__version__",
    "hookimpl",
]
