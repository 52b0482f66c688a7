"""Plain frozen values that every layer shares: what a request asks for and how it ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_CHOICES = 128
GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: scaling by it would overflow and picks the maximum anyway."""


class FinishReason(StrEnum):
    """Why a choice ended, in the words of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    """As ``stop``, and the answer has calls; the front says so, never an engine."""
    ABORT = "abort"
    ERROR = "error"


StructuredKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


MAX_GRAMMAR_CHARS = 1 << 18
"""Of a :class:`StructuredOutput`'s source."""


class StructuredOutput(msgspec.Struct, frozen=True):
    """What the text of an answer must be. Since 0.1."""

    kind: StructuredKind
    source: str = ""
    """``json``: a JSON schema as JSON text; ``regex``: the expression; ``choice``: a JSON list of strings;
    ``grammar``: EBNF or Lark; ``structural_tag``: its JSON text; ``json_object``: empty."""


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may call. Since 0.1."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of its arguments, an object; empty if it takes none."""
    strict: bool = False
    """Its calls must fit the schema, however they come about."""


class BeamSearch(msgspec.Struct, frozen=True):
    """How beams are searched, as in transformers. Since 0.1."""

    width: int
    length_penalty: float = 1.0
    """A beam's score is its summed logprob over its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """True: end as soon as ``width`` beams are complete. False: when the best open one would not beat them
    if it were complete now. ``never``: when none can beat them, however long it grows."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request asks of the sampler and of its end.

    Values are checked in the front process before the engine sees them (``frontend/check.py``), not
    here. Units are tokens unless said otherwise.

    Since 0.1.
    """

    n: int = 1
    max_tokens: int | None = None
    """Most tokens to generate; None: until the model ends, or the context is full."""
    min_tokens: int = 0
    """End tokens and stop token ids are masked until this many tokens are out."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1 mean all."""
    min_p: float = 0.0
    seed: int | None = None
    """None lets the front process draw one; the engine always sees a number."""
    presence_penalty: float = 0.0
    """Subtracted once from every token the output holds."""
    frequency_penalty: float = 0.0
    """Subtracted for each time the output holds the token."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL paper)."""
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    """Texts that end the answer; one alone may be given as it is."""
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of alternatives per token besides the sampled one; None means no logprobs."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """vLLM's, without effect: special tokens that show are never parted by spaces here."""
    best_of: int | None = None
    """Choices generated, of which the ``n`` with the highest mean logprob a token are returned."""
    beam_search: BeamSearch | None = None
    """Search instead of sampling; ``n`` of the beams are returned, best first."""
    prompt_logprobs: int | None = None
    """Number of alternatives per prompt token; None means no prompt logprobs."""
    bad_words: tuple[str, ...] = ()
    """Texts that may not be completed, as tokenized on their own and after a space."""
    allowed_token_ids: tuple[int, ...] | None = None
    """All that may be sampled; None allows all."""
    truncate_prompt_tokens: int | None = None
    """Keep the last so many prompt tokens; -1 keeps as many as the context holds."""
    structured: StructuredOutput | None = None
    thinking_token_budget: int | None = None
    """Most tokens of reasoning in an answer of a conversation: its end is written then, and the answer
    follows. None: as many as the model likes."""
    plugin_args: dict[str, Any] = {}
    """Per-plugin request data, validated by each plugin's schema; plain msgpack values."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))

    @property
    def num_sequences(self) -> int:
        """How many of its continuations are computed at once."""
        if self.beam_search is not None:
            return self.beam_search.width
        return self.n if self.best_of is None else self.best_of

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW
