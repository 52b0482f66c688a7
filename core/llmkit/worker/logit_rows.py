"""The rows of logits of one step: a row of the batch has one, or one more than it has draft tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from llmkit.contracts.processors import TokenArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class LogitRows:
    """Whose each row of logits is and where its token will stand."""

    slots: IntArray
    """[rows]"""
    positions: IntArray
    """[rows]: where the sampled token will stand in its request."""
    ahead: IntArray | None
    """[rows]: how many of the tokens just before are drafts; None where none is anywhere."""
    tokens: TokenArray
    """[slots, longest]: every request's tokens, and behind them the drafts of this step."""

    def before(self, row: int) -> TokenArray:
        """int32: prompt, output and drafts before the token of ``row``; read only."""
        known = self.tokens[self.slots[row], : self.positions[row]]
        known.flags.writeable = False
        return known

    def drafts(self, row: int) -> TokenArray:
        """int32: the drafts among :meth:`before`."""
        if self.ahead is None:
            return _NO_TOKENS
        end = int(self.positions[row])
        return self.tokens[self.slots[row], end - int(self.ahead[row]) : end]


_NO_TOKENS: TokenArray = np.zeros(0, np.int32)


@dataclass(slots=True)
class PromptRows:
    """Prompt tokens of one request whose logprobs this step gives."""

    request_id: str
    first: int
    """The token of the step whose hidden state becomes the logits of the first of them."""
    targets: list[int]
    """The prompt tokens themselves."""
    wanted: int
    """Alternatives for each."""
