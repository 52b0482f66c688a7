"""What the sampler knows of the rows at hand: arrays by slot, written when a row comes and read each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmkit.messages import NewRow
from llmkit.types import SamplingParams
from llmkit.worker.bad_words import BadWords
from llmkit.worker.noise import stream_keys
from llmkit.worker.penalties import TokenCounts
from llmkit.worker.processors import Processors

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float32]]

RANDOM = 1
TOP_K = 2
TOP_P = 4
MIN_P = 8
PENALTIES = 16
BIAS = 32
MIN_TOKENS = 64
LOGPROBS = 128
ALLOWED = 256
BAD_WORDS = 512
PROCESSORS = 1024
"""Bits of :attr:`SamplingState.needs`: the work a row asks for; 0 is plain greedy."""


@dataclass(slots=True)
class Bias:
    """Amounts that a request adds to the logits of some tokens."""

    ids: IntArray
    amounts: FloatArray


class SamplingState:
    """Owns the sampling parameters of every row in the batch, by slot."""

    def __init__(self, max_rows: int, vocab_size: int, processors: Processors | None = None) -> None:
        self._vocab_size = vocab_size
        self.processors = processors or Processors({})
        self.request_ids = [""] * max_rows
        self.needs = np.zeros(max_rows, np.uint32)
        self.temperature = np.ones(max_rows, np.float32)
        self.top_k = np.zeros(max_rows, np.int64)
        self.top_p = np.ones(max_rows, np.float64)
        self.min_p = np.zeros(max_rows, np.float32)
        self.repetition = np.ones(max_rows, np.float32)
        self.frequency = np.zeros(max_rows, np.float32)
        self.presence = np.zeros(max_rows, np.float32)
        self.key = np.zeros(max_rows, np.uint64)
        self.free_from = np.zeros(max_rows, np.int64)
        """Position from which on end tokens may be sampled."""
        self.num_logprobs = np.zeros(max_rows, np.int64)
        self.num_prompt = np.zeros(max_rows, np.int64)
        self.prompt_logprobs = np.full(max_rows, -1, np.int64)
        """Alternatives for each prompt token; -1 where a row wants no prompt logprobs."""
        self.prompt_from = np.zeros(max_rows, np.int64)
        """First prompt position whose logprobs are still wanted."""
        self.counts: list[TokenCounts | None] = [None] * max_rows
        self.bias: list[Bias | None] = [None] * max_rows
        self.end_ids: list[IntArray] = [np.zeros(0, np.int64)] * max_rows
        self.allowed: list[IntArray | None] = [None] * max_rows
        self.bad_words: list[BadWords | None] = [None] * max_rows

    def put(self, slot: int, row: NewRow) -> None:
        """A row takes ``slot``."""
        params = row.params
        self.request_ids[slot] = row.request_id
        self.needs[slot] = _needs(params, self._vocab_size) | (BAD_WORDS if row.bad_words else 0)
        if row.plugin_data and self.processors.add(row):
            self.needs[slot] |= PROCESSORS
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.repetition[slot] = params.repetition_penalty
        self.frequency[slot] = params.frequency_penalty
        self.presence[slot] = params.presence_penalty
        seed, choice = np.array([row.seed], np.uint64), np.array([row.choice], np.uint64)
        self.key[slot] = stream_keys(seed, choice)[0]
        self.free_from[slot] = row.num_prompt + params.min_tokens
        self.num_logprobs[slot] = params.logprobs or 0
        self.num_prompt[slot] = row.num_prompt
        self.prompt_logprobs[slot] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        self.prompt_from[slot] = row.prompt_logprobs_from
        self.bias[slot] = _bias(params.logit_bias)
        self.end_ids[slot] = np.array([i for i in row.end_ids if i < self._vocab_size], np.int64)
        allowed = params.allowed_token_ids
        self.allowed[slot] = None if allowed is None else np.unique(np.array(allowed, np.int64))
        self.bad_words[slot] = BadWords(row.bad_words, self._vocab_size) if row.bad_words else None
        self.counts[slot] = None
        if self.needs[slot] & PENALTIES:
            # Presence and frequency look at the output alone, repetition at the prompt too.
            prompt = row.token_ids[: row.num_prompt] if params.repetition_penalty != 1 else []
            self.counts[slot] = TokenCounts(prompt, row.token_ids[row.num_prompt :])

    def append(self, slot: int, token_ids: Sequence[int]) -> None:
        """The row's output grew."""
        counts = self.counts[slot]
        if counts is not None:
            for token in token_ids:
                counts.append(token)

    def clear(self, slot: int) -> None:
        """The row is gone."""
        if self.needs[slot] & PROCESSORS:
            self.processors.remove(self.request_ids[slot])
        self.needs[slot] = 0
        self.prompt_logprobs[slot] = -1
        self.counts[slot] = self.bias[slot] = self.allowed[slot] = self.bad_words[slot] = None


def _needs(params: SamplingParams, vocab_size: int) -> int:
    needs = 0
    if not params.greedy:
        needs |= RANDOM
        needs |= TOP_K if 0 < params.top_k < vocab_size else 0
        needs |= TOP_P if params.top_p < 1 else 0
        needs |= MIN_P if params.min_p > 0 else 0
    if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
        needs |= PENALTIES
    needs |= BIAS if params.logit_bias else 0
    needs |= MIN_TOKENS if params.min_tokens > 0 else 0
    needs |= LOGPROBS if params.logprobs is not None else 0
    needs |= ALLOWED if params.allowed_token_ids is not None else 0
    return needs


def _bias(logit_bias: dict[int, float]) -> Bias | None:
    if not logit_bias:
        return None
    ids = np.fromiter(logit_bias.keys(), np.int64, len(logit_bias))
    return Bias(ids, np.fromiter(logit_bias.values(), np.float32, len(logit_bias)))
