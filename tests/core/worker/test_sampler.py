from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from llmkit.contracts import NewRow, SamplingParams
from llmkit.errors import EngineError
from llmkit.worker.logit_rows import LogitRows
from llmkit.worker.noise import stream_keys, uniforms
from llmkit.worker.sampler import Sampler, Samples, _floor_of_mass, _invert, _segmented
from llmkit.worker.sampling_state import SamplingState
from llmkit.worker.token_masks import TokenMasks, read_masks


@dataclass
class Row:
    """A row to sample: its parameters, tokens and logits."""

    params: SamplingParams
    logits: Tensor
    prompt: list[int] = field(default_factory=lambda: [1])
    output: list[int] = field(default_factory=list)
    seed: int = 0
    choice: int = 0
    end_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


def sample(rows: list[Row], masks: Any = None, *, processed: bool = False) -> Samples:
    vocab = rows[0].logits.shape[0]
    state = SamplingState(len(rows) + 2, vocab)
    slots = np.arange(len(rows))[::-1] + 1
    for row, slot in zip(rows, slots.tolist(), strict=True):
        state.put(slot, new_row(row))
    tokens = np.zeros((len(rows) + 2, 1 + max(row.position for row in rows)), np.int32)
    for row, slot in zip(rows, slots.tolist(), strict=True):
        tokens[slot, : row.position] = [*row.prompt, *row.output]
    where = LogitRows(slots, np.array([row.position for row in rows]), None, tokens)
    logits = torch.stack([row.logits for row in rows])
    return Sampler(state, processed=processed).sample(logits, where, masks)


def new_row(row: Row) -> NewRow:
    return NewRow(
        "r",
        [*row.prompt, *row.output],
        len(row.prompt),
        row.params,
        row.seed,
        row.choice,
        row.end_ids,
        [],
        bad_words=row.bad_words,
    )


def token(row: Row) -> int:
    return sample([row]).tokens[0]


def peaked(vocab: int, **logits: float) -> Tensor:
    """Logits of -5 but for those named ``t<id>``."""
    row = torch.full((vocab,), -5.0)
    for name, value in logits.items():
        row[int(name[1:])] = value
    return row


def random_logits(vocab: int, seed: int, scale: float = 3.0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, -1, 1, 3, 40, 300, 10**6]),
    top_p=st.sampled_from([1.0, 0.99, 0.7, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.9, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {}, {3: 5.0, 0: -100.0}]),
    min_tokens=st.sampled_from([0, 0, 4]),
    logprobs=st.sampled_from([None, None, 0, 5]),
)


@st.composite
def rows(draw: Any, vocab: int) -> Row:
    ids = st.lists(st.integers(0, vocab - 1), min_size=1, max_size=12)
    return Row(
        params=draw(PARAMS),
        logits=random_logits(vocab, draw(st.integers(0, 1000)), draw(st.sampled_from([0.1, 3.0, 20.0]))),
        prompt=draw(ids),
        output=draw(ids),
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 3)),
        end_ids=(2, 5),
    )


def acceptable(row: Row) -> set[int]:
    """Tokens that the definition allows, in fp64 and by sorting; more than one at a rounding's distance."""
    params, logits = row.params, row.logits.double().numpy().copy()
    vocab = len(logits)
    if len(row.output) < params.min_tokens:
        logits[list(row.end_ids)] = -math.inf
    for index, bias in params.logit_bias.items():
        logits[index] += bias
    for index in {*row.prompt, *row.output} if params.repetition_penalty != 1 else ():
        logits[index] *= 1 / params.repetition_penalty if logits[index] > 0 else params.repetition_penalty
    for index in set(row.output):
        logits[index] -= params.frequency_penalty * row.output.count(index) + params.presence_penalty
    if params.greedy:
        return set(np.flatnonzero(logits >= logits.max() - 1e-5).tolist())
    probs = np.exp((logits - logits.max()) / params.temperature)
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max() * (1 - 1e-6)] = 0
    if 0 < params.top_k < vocab:
        probs[probs < np.sort(probs)[-params.top_k]] = 0
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    kept: set[int] = set()
    key = stream_keys(np.array([row.seed], np.uint64), np.array([row.choice], np.uint64))
    draw = float(uniforms(key, np.array([row.position], np.uint64))[0])
    for slack in (-1e-5, 0.0, 1e-5):
        own = probs.copy()
        own[order[(before >= (params.top_p + slack) * probs.sum()) & (before > 0)]] = 0
        cumulated = np.cumsum(own) / own.sum()
        for near in (-2e-5, 0.0, 2e-5):
            place = int(np.searchsorted(cumulated, min(max(draw + near, 0.0), 1 - 1e-12), side="right"))
            kept.add(min(place, vocab - 1))
    return kept


@given(row=st.sampled_from([31, 256, 1000]).flatmap(rows))
@settings(max_examples=150, deadline=None)
def test_a_sample_is_the_one_that_the_definition_gives(row: Row) -> None:
    assert token(row) in acceptable(row)


@given(batch=st.sampled_from([33, 1000, 6001]).flatmap(lambda v: st.lists(rows(v), min_size=2, max_size=6)))
@settings(max_examples=40, deadline=None)
def test_a_row_gets_the_same_bits_alone_and_in_any_batch(batch: list[Row]) -> None:
    """vllm-project/vllm#51226: seeded rows depended on their neighbours."""
    alone = [sample([row]) for row in batch]
    for together in (sample(batch), reversed_samples(sample(batch[::-1]))):
        assert together.tokens == [one.tokens[0] for one in alone]
        for index, one in enumerate(alone):
            expected = one.logprobs[0] if one.logprobs else None
            assert (together.logprobs[index] if together.logprobs else None) == expected


def reversed_samples(samples: Samples) -> Samples:
    return Samples(samples.tokens[::-1], samples.logprobs[::-1] if samples.logprobs else None)


def test_a_real_vocabulary_gets_the_same_bits_alone_and_in_a_batch_on_several_threads() -> None:
    """Torch cuts one long row among its threads, and several rows otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        params = [SamplingParams(temperature=1.0, top_p=p, logprobs=2) for p in (1.0, 0.9999, 0.6, 1.0)]
        batch = [Row(p, random_logits(50_257, i, 1.0), seed=i) for i, p in enumerate(params * 6)]
        together = sample(batch)
        alone = [sample([row]) for row in batch]
    finally:
        torch.set_num_threads(threads)
    assert together.tokens == [one.tokens[0] for one in alone]
    assert together.logprobs == [one.logprobs[0] for one in alone if one.logprobs]


def test_the_sums_behind_a_draw_have_the_same_bits_alone_and_in_a_batch() -> None:
    probs = torch.softmax(torch.stack([random_logits(50_257, seed) for seed in range(9)]), dim=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = _segmented(probs)[1]
        alone = torch.cat([_segmented(row)[1] for row in probs.split(1)])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, alone)


@given(seed=st.integers(0, 10**6), vocab=st.integers(1, 700), draw=st.sampled_from([0.0, 0.5, 1 - 2.0**-53]))
@settings(max_examples=80, deadline=None)
def test_no_draw_ever_gives_a_token_of_probability_zero(seed: int, vocab: int, draw: float) -> None:
    made = torch.Generator().manual_seed(seed)
    probs = torch.rand(8, vocab, generator=made) ** 8
    probs[torch.rand(8, vocab, generator=made) < 0.8] = 0
    probs[:, int(torch.randint(vocab, (1,), generator=made))] += 1e-6
    tokens = _invert(probs, torch.full((8,), draw, dtype=torch.float64))
    assert (probs.gather(1, tokens.unsqueeze(1)) > 0).all()


def test_samples_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))
    drawn = [token(Row(SamplingParams(), logits, seed=seed)) for seed in range(3000)]
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    assert np.abs(shares - np.exp(logits.numpy())).max() < 0.03


@pytest.mark.parametrize("top_k", [1_000_000, 0, -1])
def test_a_top_k_that_keeps_all_is_no_top_k(top_k: int) -> None:
    """vllm-project/vllm#14234: it crashed, also when greedy and sampled rows shared a batch."""
    plain = Row(SamplingParams(temperature=1.0), random_logits(500, 1), seed=3)
    odd = Row(SamplingParams(temperature=1.0, top_k=top_k), plain.logits, seed=3)
    greedy = Row(SamplingParams(temperature=0), plain.logits)
    assert sample([odd, greedy]).tokens == [token(plain), int(plain.logits.argmax())]


@pytest.mark.parametrize("temperature", [0.001, 0.0001, 1e-05, 1e-06, 1e-30])
def test_a_tiny_temperature_gives_the_greedy_token(temperature: float) -> None:
    """vllm-project/vllm#3063: it overflowed to NaN."""
    logits = (random_logits(5000, 4) * 20).half().float()
    row = Row(SamplingParams(temperature=temperature), logits, seed=11)
    assert token(row) == int(logits.argmax())


def test_presence_and_frequency_penalties_look_at_the_output_and_repetition_at_both() -> None:
    """vllm-project/vllm-metal#69: prompt and output tokens were mixed up."""
    prompt = [5, 5, 5]
    first = peaked(9, t5=1.0, t6=0.999)
    for params, expected in [
        (SamplingParams(temperature=0, presence_penalty=2), 5),
        (SamplingParams(temperature=0, frequency_penalty=2), 5),
        (SamplingParams(temperature=0, repetition_penalty=2), 6),
    ]:
        assert token(Row(params, first, prompt)) == expected
    second = peaked(9, t6=1.0, t7=-0.999)
    presence = SamplingParams(temperature=0, presence_penalty=2)
    assert token(Row(presence, second, prompt, [6])) == 7
    assert token(Row(presence, peaked(9, t6=1.0, t7=-1.001), prompt, [6])) == 6
    assert token(Row(presence, peaked(9, t6=1.0, t7=-1.001), prompt, [6, 6])) == 6
    frequency = SamplingParams(temperature=0, frequency_penalty=2)
    assert token(Row(frequency, peaked(9, t6=1.0, t7=-1.001), prompt, [6, 6])) == 7


def test_a_repetition_penalty_makes_negative_logits_less_likely_too() -> None:
    logits = torch.tensor([-9.0, -1.0, -1.5, -9.0])
    assert token(Row(SamplingParams(temperature=0, repetition_penalty=2.0), logits, [1])) == 2


def test_presence_leaves_prompt_tokens_alone_also_beside_a_repetition_penalty() -> None:
    params = SamplingParams(temperature=0, presence_penalty=2.0, repetition_penalty=1.1)
    assert token(Row(params, peaked(9, t5=2.2, t6=1.0), [5], [7])) == 5


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = peaked(9, t2=5.0, t3=1.0)
    params = SamplingParams(temperature=0, min_tokens=2)
    for output, expected in [([], 3), ([3], 3), ([3, 3], 2)]:
        assert token(Row(params, logits, [1], output, end_ids=(2, 10_000))) == expected


def test_a_mask_applies_to_its_row_only_and_comes_after_the_bias() -> None:
    greedy = SamplingParams(temperature=0)
    biased = SamplingParams(temperature=0, logit_bias={4: 100.0})
    allowed = np.zeros((1, 3), np.uint32)
    allowed[0, 65 // 32] |= 1 << (65 % 32)
    allowed[0, 2 // 32] |= 1 << 2
    masks = read_masks(allowed.tobytes(), [1], 70)
    logits = peaked(70, t1=9.0, t65=1.0)
    assert sample([Row(greedy, logits), Row(biased, logits)], masks).tokens == [1, 65]


def test_a_mask_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(EngineError, match="token masks"):
        read_masks(b"\0" * 8, [0], 70)


PATHS = [
    SamplingParams(temperature=0, logprobs=2),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=300, min_p=0.01, logprobs=2),
]


@pytest.mark.parametrize("params", PATHS, ids=["greedy", "random", "random within"])
@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_row_without_a_possible_token_fails_alone(params: SamplingParams, poison: float) -> None:
    good = [Row(params, random_logits(500, seed), seed=seed) for seed in range(2)]
    bad = Row(params, torch.full((500,), poison))
    samples = sample([good[0], bad, good[1]])
    assert list(samples.failed) == [1]
    assert ("not finite" in samples.failed[1]) == (poison != -math.inf)
    assert [samples.tokens[0], samples.tokens[2]] == [token(row) for row in good]
    if samples.logprobs is not None:
        assert samples.logprobs[1] is None
        assert samples.logprobs[2] is not None


def test_one_nan_among_good_logits_fails_its_row() -> None:
    logits = random_logits(500, 0)
    logits[300] = math.nan
    for params in PATHS:
        assert "not finite" in sample([Row(params, logits)]).failed[0]


def test_a_mask_that_allows_nothing_fails_its_row() -> None:
    masks = TokenMasks(np.array([1]), np.zeros((1, 8), np.uint8), 40)
    for params in PATHS:
        rows = [Row(params, random_logits(40, seed)) for seed in range(3)]
        samples = sample(rows, masks)
        assert list(samples.failed) == [1]
        assert "every one is masked" in samples.failed[1]
        assert [samples.tokens[0], samples.tokens[2]] == [token(rows[0]), token(rows[2])]


def test_rows_drawn_in_pieces_have_the_bits_of_rows_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [SamplingParams(temperature=t, top_p=p) for t in (0.0, 0.7, 1.3) for p in (1.0, 0.95)]
    batch = [Row(params, random_logits(3001, i), seed=i) for i, params in enumerate(kinds * 3)]
    together = sample(batch).tokens
    for piece in (1, 3001 * 4):
        monkeypatch.setattr("llmkit.worker.sampler._PIECE", piece)
        assert sample(batch).tokens == together


def test_drawing_from_many_rows_takes_little_more_memory_than_their_logits() -> None:
    """Measured in a process of its own: the peak of resident memory while 64 rows are drawn."""
    code = """
import resource, torch, numpy as np
from llmkit.contracts import NewRow, SamplingParams
from llmkit.worker.logit_rows import LogitRows
from llmkit.worker.sampler import Sampler
from llmkit.worker.sampling_state import SamplingState

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

rows, vocab = 64, 150_000
def run(rows, logits):
    state, slots = SamplingState(rows, vocab), np.arange(rows)
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=400, min_p=0.001)
    for slot in slots:
        state.put(int(slot), NewRow("r", [1], 1, params, int(slot), 0, (), []))
    where = LogitRows(slots, np.ones(rows, np.int64), None, np.ones((rows, 2), np.int32))
    Sampler(state).sample(logits, where, None)

run(1, torch.randn(1, vocab))
logits = torch.randn(rows, vocab)
before = peak()
run(rows, logits)
print((peak() - before) / logits.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.0


@given(vocab=st.sampled_from([257, 5000]), seed=st.integers(0, 1000), scale=st.sampled_from([0.0, 0.1, 2.0]))
@settings(max_examples=30, deadline=None)
def test_top_p_over_many_tokens_finds_the_floor_that_sorting_finds(
    vocab: int, seed: int, scale: float
) -> None:
    probs = torch.softmax(random_logits(vocab, seed, scale), dim=0)
    ordered = probs.double().sort(descending=True).values
    for share in (0.3, 0.9, 0.99, 1 - 1e-9):
        goal = share * float(ordered.sum())
        floor = float(ordered[int((ordered.cumsum(0) < goal).sum())])
        assert _floor_of_mass(probs.numpy(), goal) == floor
    assert _floor_of_mass(probs.numpy(), 2.0) == 0.0


def test_logprobs_are_the_models_own_whatever_the_request_does_to_them() -> None:
    logits = random_logits(300, 5)
    params = SamplingParams(
        temperature=0.3, top_k=2, logit_bias={9: 50.0}, repetition_penalty=1.5, logprobs=3
    )
    samples = sample([Row(params, logits.clone())])
    assert samples.tokens == [9]
    assert samples.logprobs is not None
    entry = samples.logprobs[0]
    expected = torch.log_softmax(logits.double(), 0)
    assert entry is not None
    assert entry.sampled.logprob == pytest.approx(float(expected[9]), abs=1e-5)
    assert entry.sampled.rank == int((expected > expected[9]).sum()) + 1
    assert [t.token_id for t in entry.top] == expected.topk(3).indices.tolist()
    assert [t.rank for t in entry.top] == [1, 2, 3]


def test_alternatives_of_equal_logits_are_the_same_ones_whatever_others_ask_for() -> None:
    logits = torch.zeros(5000)
    one = Row(SamplingParams(temperature=0, logprobs=1), logits)
    many = Row(SamplingParams(temperature=0, logprobs=20), random_logits(5000, 1))
    alone, together = sample([one]).logprobs, sample([one, many]).logprobs
    assert alone is not None
    assert together is not None
    assert alone[0] == together[0]


def test_a_logprob_of_minus_infinity_is_written_as_a_number() -> None:
    """vllm-project/vllm#10234: JSON cannot say minus infinity."""
    logits = torch.full((40,), -math.inf)
    logits[7] = 0.0
    samples = sample([Row(SamplingParams(temperature=0, logprobs=5), logits)])
    entry = (samples.logprobs or [None])[0]
    assert entry is not None
    assert entry.sampled.token_id == 7
    assert [t.logprob for t in entry.top] == [0.0, -9999.0, -9999.0, -9999.0, -9999.0]


# ---- drafts, allowed tokens, bad words ----


@given(row=st.sampled_from([33, 1000]).flatmap(rows), data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_behind_drafts_are_sampled_as_if_the_drafts_were_output(row: Row, data: st.DataObject) -> None:
    vocab = len(row.logits)
    drafts = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=4))
    row.bad_words = ((3,), (row.output[-1], 4), (drafts[0], 5), (row.output[-1], drafts[0], 6))
    logits = [random_logits(vocab, 2000 + index) for index in range(len(drafts) + 1)]
    alone = [
        sample([replace(row, logits=own, output=row.output + drafts[:count])])
        for count, own in enumerate(logits)
    ]
    state = SamplingState(2, vocab)
    ids = [*row.prompt, *row.output]
    state.put(1, new_row(row))
    tokens = np.zeros((2, len(ids) + len(drafts)), np.int32)
    tokens[1] = ids + drafts
    ahead = np.arange(len(drafts) + 1)
    where = LogitRows(np.ones_like(ahead), len(ids) + ahead, ahead, tokens)
    together = Sampler(state).sample(torch.stack(logits), where, None)
    assert together.tokens == [one.tokens[0] for one in alone]
    assert together.logprobs == (
        [one.logprobs[0] for one in alone if one.logprobs] if row.params.logprobs is not None else None
    )


def test_only_allowed_tokens_are_sampled_whatever_a_bias_wants() -> None:
    params = SamplingParams(temperature=0, allowed_token_ids=(4, 2), logit_bias={1: 100.0})
    assert token(Row(params, peaked(9, t1=9.0, t2=1.0, t4=2.0))) == 4


def test_a_bad_word_is_forbidden_where_the_output_ends_with_its_beginning() -> None:
    greedy = SamplingParams(temperature=0)
    logits = peaked(9, t5=2.0, t6=1.0)
    for bad, output, expected in [
        (((5,),), [], 6),
        (((1, 5),), [1], 6),
        (((1, 5),), [2], 5),
        (((1, 5),), [], 5),  # the prompt's last token is 1, but it is no output
        (((1, 2, 5),), [1, 2], 6),
        (((1, 2, 5),), [2], 5),
        (((1, 2, 5), (3, 2, 6)), [3, 2], 5),
        (((10_000,), (1, 10_000)), [1], 5),
    ]:
        assert token(Row(greedy, logits, [1], list(output), bad_words=bad)) == expected


# ---- which distribution logprobs are of ----


def test_processed_logprobs_are_of_what_is_drawn_from() -> None:
    logits = random_logits(300, 5)
    params = SamplingParams(temperature=0.7, top_k=5, logit_bias={9: 2.0}, logprobs=6)
    entry = (sample([Row(params, logits.clone(), seed=2)], processed=True).logprobs or [None])[0]
    edited = logits.double()
    edited[9] += 2.0
    edited /= 0.7
    edited[edited < edited.topk(5).values[-1]] = -math.inf
    expected = torch.log_softmax(edited, 0)
    assert entry is not None
    assert [top.token_id for top in entry.top[:5]] == expected.topk(5).indices.tolist()
    assert [top.logprob for top in entry.top[:5]] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-5)
    assert entry.top[5].logprob == -9999.0
    assert entry.sampled.logprob == pytest.approx(float(expected[entry.sampled.token_id]), abs=1e-5)


def test_processed_logprobs_of_a_greedy_row_leave_nothing_out_and_have_no_temperature() -> None:
    logits = random_logits(300, 5)
    params = SamplingParams(temperature=0, top_k=2, logit_bias={9: 2.0}, logprobs=1)
    rows_ = [Row(params, logits), Row(SamplingParams(temperature=1.0, top_p=0.5, logprobs=1), logits)]
    entry = (sample(rows_, processed=True).logprobs or [None])[0]
    edited = logits.double()
    edited[9] += 2.0
    assert entry is not None
    assert entry.sampled.logprob == pytest.approx(float(torch.log_softmax(edited, 0).max()), abs=1e-5)
    assert sample(rows_[:1], processed=True).logprobs == [entry]
