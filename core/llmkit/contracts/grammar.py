"""Grammars: from what an answer must be to the tokens that may come next. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from llmkit.types import StructuredOutput

if TYPE_CHECKING:
    import numpy as np

MaskRow: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
"""``[ceil(vocab / 32)]``; bit ``i % 32`` of word ``i // 32`` set: token ``i`` is allowed."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The vocabulary that grammars are made for. Since 0.1."""

    token_bytes: Sequence[bytes]
    """What each token id stands for, ``vocab_size`` of them; empty for ids that are no text."""
    special_ids: frozenset[int]
    """Control tokens: never part of a text, whatever their bytes."""
    eos_ids: tuple[int, ...]
    """May come where the text is complete."""
    vocab_size: int
    """Embedding rows."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """Texts around a model's calls that are one token each, all of them in ``special_ids``: where a
    structural tag has such a text, that token must come, and no others that spell it."""


class GrammarMatcher(Protocol):
    """Where one answer is in its grammar. Since 0.1."""

    def fill_mask(self, mask: MaskRow) -> None:
        """Write which tokens may come next, every word of it; end tokens where the text is complete."""

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, and nothing changed, where it may not come."""

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens."""


class Grammar(Protocol):
    """Compiled and immutable, shared by every request with the same source. Since 0.1."""

    def matcher(self) -> GrammarMatcher:
        """At the beginning of an answer."""


class GrammarBackend(Protocol):
    """Compiles in a process of its own, under limits of time and memory; loads in the engine. Since 0.1."""

    def compile(self, wanted: StructuredOutput) -> bytes:
        """What :meth:`load` takes.

        :raises ValueError: ``wanted`` is wrong or cannot be honoured exactly; its words go to the client.
        """

    def load(self, data: bytes) -> Grammar:
        """Quick: the costly part is in ``data``, or bounded by :meth:`compile` having passed."""


class RegisterGrammar(Protocol):
    """Since 0.1."""

    def __call__(
        self,
        name: str,
        factory: Callable[[GrammarSpec, Any], GrammarBackend],
        *,
        refuses: Callable[[GrammarSpec], str | None],
        priority: int = 0,
    ) -> None:
        """``auto`` takes the highest priority that does not refuse."""
