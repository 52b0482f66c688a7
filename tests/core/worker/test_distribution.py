"""What is sampled against what the definition says, by chi-square over 50,000 draws each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from llmkit.contracts import NewRow, RowPlan, SamplingParams
from llmkit.worker.batch import Batch, BatchLimits
from llmkit.worker.logit_rows import LogitRows
from llmkit.worker.results import step_rows
from llmkit.worker.sampler import Sampler
from llmkit.worker.sampling_state import SamplingState

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

DRAWS = 50_000
ROWS = 500
VOCAB = 300
PROMPT = [3, 3, 8, 1]
OUTPUT = [5, 8, 5, 5, 2]
CASES = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.4),
    "hot": SamplingParams(temperature=1.8),
    "top_k": SamplingParams(top_k=12),
    "top_k of many": SamplingParams(temperature=2.0, top_k=280),
    "top_p": SamplingParams(top_p=0.8),
    "top_p of many": SamplingParams(temperature=2.5, top_p=0.97),
    "min_p": SamplingParams(min_p=0.05),
    "all filters": SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.02),
    "presence": SamplingParams(presence_penalty=1.2),
    "frequency": SamplingParams(frequency_penalty=0.6),
    "repetition": SamplingParams(repetition_penalty=1.4),
    "all penalties": SamplingParams(
        temperature=0.8, presence_penalty=-0.7, frequency_penalty=0.3, repetition_penalty=1.2, top_p=0.95
    ),
    "bias and allowed": SamplingParams(logit_bias={7: 2.0, 9: -1.0}, allowed_token_ids=(2, 5, 7, 8, 9, 30)),
}

SLOW = ("top_p of many",)
"""A row at a time; a tenth of the draws."""


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    params = CASES[name]
    logits = _logits(1)[0]
    state, slots = SamplingState(ROWS, VOCAB), np.arange(ROWS)
    for slot in slots.tolist():
        state.put(slot, NewRow("r", [*PROMPT, *OUTPUT], len(PROMPT), params, slot, 0, (), []))
    tokens = np.zeros((ROWS, 1), np.int32)
    drawn: list[int] = []
    draws = DRAWS // 10 if name in SLOW else DRAWS
    for position in range(draws // ROWS):
        rows = LogitRows(slots, np.full(ROWS, 9 + position), None, tokens)
        batch = torch.from_numpy(logits).float().repeat(ROWS, 1)
        drawn += Sampler(state).sample(batch, rows, None).tokens
    _check(np.bincount(drawn, minlength=VOCAB), _exact(logits, params, PROMPT, OUTPUT))


@pytest.mark.parametrize("name", ["plain", "top_p", "all filters"])
def test_draws_behind_verified_drafts_follow_the_exact_distribution(name: str) -> None:
    """A chain of tokens, each drawn from a row of a table that the one before it chooses.

    Drafts come from another distribution, so that some are kept and some refused: a bias of the verification
    towards either would show in where the chain goes from each token.
    """
    params, vocab, length = CASES[name], 8, 10
    table = _logits(vocab, vocab) / 2
    made = np.random.default_rng(5)
    counts = np.zeros((vocab, vocab), np.int64)
    kept = 0
    limits = BatchLimits(max_rows=ROWS, max_tokens=4 * ROWS, max_len=32, block_sizes=())
    batch = Batch(limits, SamplingState(ROWS, vocab))
    sampler = Sampler(batch._sampling)
    for first in range(0, DRAWS // length, ROWS):
        chains = {f"{first + row}": [row % vocab] for row in range(ROWS)}
        told = dict.fromkeys(chains, 0)
        batch.add(
            NewRow(name, list(chain), 1, params, int(name), 0, (), []) for name, chain in chains.items()
        )
        while open_ := [name for name, chain in chains.items() if len(chain) <= length]:
            plans = []
            for name_ in open_:
                chain = chains[name_]
                drafts = made.integers(0, vocab, size=int(made.integers(0, 4))).tolist()
                fresh = chain[max(told[name_], 1) :]
                told[name_] = len(chain)
                plans.append(
                    RowPlan(name_, len(chain) - 1, 1 + len(drafts), 1 + len(drafts), fresh, [], drafts)
                )
            step = batch.step(plans)
            assert step.model.token_ids is not None
            logits = torch.from_numpy(table).float()[step.model.token_ids[step.logit_tokens]]
            results, _ = step_rows(step, sampler.sample(logits, step.logits, None), {})
            for result in results:
                chains[result.request_id] += result.token_ids
                kept += len(result.token_ids) - 1
        batch.remove(chains)
        for chain in chains.values():
            np.add.at(counts, (chain[:length], chain[1 : length + 1]), 1)
    assert counts.sum() == DRAWS
    assert kept > DRAWS / 20
    for token in range(vocab):
        _check(counts[token], _exact(table[token], params, [], []))


def test_the_check_tells_a_wrong_distribution() -> None:
    exact = _exact(_logits(1)[0], SamplingParams(), [], [])
    wrong = _exact(_logits(1)[0] * 0.93, SamplingParams(), [], [])
    counts = np.random.default_rng(0).multinomial(DRAWS, wrong)
    with pytest.raises(AssertionError):
        _check(counts, exact)


def _logits(rows: int, vocab: int = VOCAB) -> FloatArray:
    return np.random.default_rng(11).normal(size=(rows, vocab)).astype(np.float32).astype(np.float64) * 2


def _exact(
    logits: FloatArray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> FloatArray:
    """The definition, a token at a time, in fp64."""
    logits = logits.copy()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in {*prompt, *output}:
        scale = params.repetition_penalty
        logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if params.allowed_token_ids is not None:
        logits[[t for t in range(len(logits)) if t not in params.allowed_token_ids]] = -math.inf
    probs = np.exp(logits / params.temperature)
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    if 0 < params.top_k < len(probs):
        probs[probs < np.sort(probs)[-params.top_k]] = 0
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.top_p * probs.sum()]] = 0
    return probs / probs.sum()


def _check(counts: np.ndarray[Any, Any], exact: FloatArray) -> None:
    """Chi-square, tokens expected less than five times together; one in 30,000 right samplers fails."""
    assert counts[exact == 0].sum() == 0, "a token of probability 0 was drawn"
    expected = exact * counts.sum()
    rare = expected < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    chi_square = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert freedom > 0
    # Wilson and Hilferty: the cube root of chi-square over its freedom is nearly normal.
    spread = 2 / (9 * freedom)
    deviation = ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5
    assert deviation < 4, f"chi-square {chi_square:.1f} at {freedom} degrees of freedom"
