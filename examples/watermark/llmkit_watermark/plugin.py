"""Entry point: imported by every llmkit process, so without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import llmkit

if TYPE_CHECKING:
    from llmkit.contracts import LogitsProcessor, ProcessorEnv, RegisterLogitsProcessor


@dataclass(frozen=True)
class Options:
    """Set by ``--plugin-option watermark.key=...``; they are the server's, not the client's."""

    key: int = 0
    gamma: float = 0.25
    """Part of the vocabulary that is green."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}; it must be between 0 and 1")


@llmkit.hookimpl
def register_logits_processors(register: RegisterLogitsProcessor) -> None:
    register("watermark", make, check=check)


def check(arguments: Any) -> float:
    """``{"delta": 3}``: what green tokens get on top; 2 by default. Gives delta."""
    if not isinstance(arguments, dict) or arguments.keys() - {"delta"}:
        raise ValueError('it may be an object with "delta" alone')
    delta = arguments.get("delta", 2.0)
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta <= 20:
        raise ValueError(f"delta is {delta!r}; it must be a number above 0 and up to 20")
    return float(delta)


def make(env: ProcessorEnv, options: Options) -> LogitsProcessor:
    from llmkit_watermark.processor import Watermark

    return Watermark(env, options.key, options.gamma)
