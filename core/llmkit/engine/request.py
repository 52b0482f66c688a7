"""One request in the engine: its tokens, how far they are computed, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit.messages import AddRequest
from llmkit.types import FinishReason

End = tuple[FinishReason, int | None]
"""Why a request ends, and the stop token id that ended it; None for end of sequence."""


@dataclass(slots=True, eq=False)
class Request:
    """Owned by the scheduler; policies read it as a ``RequestView``."""

    source: AddRequest
    order: int
    """Place in the order of arrival."""
    limit: int
    """Most tokens, prompt and output together."""
    root: bytes
    """Root of its prefix-cache keys."""
    tokens: list[int]
    """Prompt, then all output so far."""
    num_known: int = field(init=False)
    """``tokens``, and those that steps in flight sample and the next step can name without knowing them."""
    num_computed: int = 0
    """Tokens whose KV is there once every planned step has run."""
    num_done: int = 0
    """Tokens whose KV is there: their step's result has come."""
    num_told: int = 0
    """Tokens the workers know of; 0 while they do not know the request."""
    epoch: int = 0
    """Grows when it is preempted or ends, so that results of earlier steps are known to be stale."""
    sort_key: Any = None
    """The policy's, asked when it began to wait."""
    num_cached: int | None = None
    """Prompt tokens found in the prefix cache when it first started; None before."""
    scheduled_s: float = 0.0
    """When it first started, by ``time.monotonic()``; for observers alone."""
    tables: list[list[int]] = field(default_factory=list)
    """Block ids of each group; empty while it waits. Changed by the KV manager alone."""
    freed: list[int] = field(default_factory=list)
    """How many blocks at the front of each table a sliding group has given back."""
    num_taken: int = 0
    """Tokens whose KV it was given when it last started."""
    num_slots: int = 0
    """Tokens for which its blocks have places. Changed by the KV manager alone."""
    block_keys: list[bytes] = field(default_factory=list)
    """Chain keys of its full blocks, as far as they were asked for."""
    num_known_blocks: int = 0
    """Full blocks offered to the prefix cache since it last started."""
    prompt_logprobs_from: int = 1
    """First prompt position whose logprobs have not been passed on; the prompt's end if it asks for none."""
    may_draft: bool = False
    """Whether it is worth asking for drafts."""
    draft_misses: int = 0
    """How often in a row there were none."""
    draft_pause: int = 0
    """Steps that it goes on before it waits for a result to be asked for drafts again."""
    # What every step asks of it is kept here: its source lies elsewhere in memory.
    request_id: str = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_tokens: int = field(init=False)
    all_ends: frozenset[int] = field(init=False)
    """``end_ids``, of which every token is asked for."""
    least: int = field(init=False)
    """Tokens that it has before an end token counts."""
    whole: bool = field(init=False)
    """All hidden states of its prompt are needed: it is computed in one step, and none of it is cached."""
    followed: bool = field(init=False)
    """A grammar or a thinking budget has to know its tokens."""

    def __post_init__(self) -> None:
        source = self.source
        self.request_id = source.request_id
        self.num_prompt_tokens = len(source.prompt_ids)
        self.max_tokens = source.max_tokens
        self.num_known = len(self.tokens)
        self.all_ends = frozenset(self.end_ids)
        self.whole = source.pooling is not None and source.pooling.whole
        self.followed = source.grammar is not None or source.thinking is not None
        self.least = self.num_prompt_tokens + source.params.min_tokens
        if source.params.prompt_logprobs is None:
            self.prompt_logprobs_from = self.num_prompt_tokens

    @property
    def priority(self) -> int:
        return self.source.priority

    @property
    def arrival_s(self) -> float:
        return self.source.arrival_s

    @property
    def caller(self) -> str:
        return self.source.caller

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self.num_computed

    @property
    def remaining(self) -> int:
        """Known tokens that no planned step computes: 1 in decode, 0 or less while samples are awaited."""
        return self.num_known - self.num_computed

    @property
    def num_awaited(self) -> int:
        """Known tokens that are still being sampled."""
        return self.num_known - len(self.tokens)

    @property
    def room(self) -> int:
        """Tokens it may still take."""
        return self.limit - len(self.tokens)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some are still due: its prompt must be computed from there on, whatever the cache has."""
        return self.prompt_logprobs_from < self.num_prompt_tokens

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return () if self.source.params.ignore_eos else self.source.eos_ids

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All that end it, masked by the sampler until ``min_tokens`` are out."""
        return (*self.eos_ids, *self.source.params.stop_token_ids)

    def extend(self, tokens: Sequence[int]) -> tuple[int, End | None]:
        """Take sampled tokens up to one that ends the request: how many, and the end if there is one."""
        for taken, token in enumerate(tokens, 1):
            if (end := self._append(token)) is not None:
                return taken, end
        if len(self.tokens) > self.num_known:
            self.num_known = len(self.tokens)
        return len(tokens), None

    def drop(self, count: int) -> None:
        """Take back the last tokens of those it was just given."""
        if count:
            del self.tokens[-count:]

    def _append(self, token: int) -> End | None:
        """An end token counts from the first position at which the sampler does not mask it. An end
        beats the length limit when both come with the same token.
        """
        self.tokens.append(token)
        count = len(self.tokens)
        if token in self.all_ends and count > self.least:
            return FinishReason.STOP, None if token in self.eos_ids else token
        if count >= self.limit:
            return FinishReason.LENGTH, None
        return None
