"""Entry point: imported by every llmkit process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import llmkit

if TYPE_CHECKING:
    from llmkit.contracts import RegisterOutputStage, StageMaker

KINDS = ("email", "card")
LONGEST_WORD = 100


@dataclass(frozen=True)
class Options:
    """Set by ``--plugin-option redact.words=...``; they are the server's, not the client's."""

    kinds: tuple[str, ...] = KINDS
    words: tuple[str, ...] = ()
    """Taken out wherever they stand, spelt exactly so."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"kinds has {kind!r}; known: {', '.join(KINDS)}")
        for word in self.words:
            if not 1 <= len(word) <= LONGEST_WORD:
                raise ValueError(f"words has {word[:20]!r}; a word has 1 to {LONGEST_WORD} characters")


@llmkit.hookimpl
def register_output_stages(register: RegisterOutputStage) -> None:
    register("redact", make)


def make(options: Options) -> StageMaker:
    from llmkit_redact.stage import Redaction

    return Redaction(options.kinds, options.words)
