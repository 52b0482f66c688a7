"""Pooling in the front process: from texts to what the model makes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llmkit.pooling import PoolingParams, PoolingSpec

if TYPE_CHECKING:
    from llmkit.contracts.client import RequestContext


@dataclass(frozen=True, slots=True)
class PoolingInput:
    """One text of a request, or a pair of texts. Since 0.1."""

    prompt: str | Sequence[int]
    second: str | None = None
    """With it, ``prompt`` is text, and both are joined as the tokenizer joins pairs."""
    name: str = "input"
    """Where the request has it; errors say so."""


@dataclass(frozen=True, slots=True)
class PooledText:
    """What became of one input."""

    num_tokens: int
    cached_tokens: int
    data: bytes
    """float32 in the machine's byte order."""
    width: int
    """Numbers a vector; with several in ``data`` there is one for each token."""


class Pooler(Protocol):
    """From texts to vectors or scores. Since 0.1."""

    spec: PoolingSpec

    async def pool(
        self,
        inputs: Sequence[PoolingInput],
        params: PoolingParams,
        context: RequestContext | None = None,
        *,
        truncate: int | None = None,
        add_special_tokens: bool = True,
        prompt_name: str | None = None,
    ) -> list[PooledText]:
        """All inputs, in order, in as few steps as they fit into.

        ``truncate``: tokens to keep of each input, the first ones; -1 for what the model takes.
        ``prompt_name``: which of the model's prompts is put before each text. Cancelling aborts what runs.

        :raises RequestError: anything about the request is wrong; nothing was sent.
        :raises EngineError: the engine failed, or is dead or draining.
        """


__all__ = ["PooledText", "Pooler", "PoolingInput"]
