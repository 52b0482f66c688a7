"""Beam search is transformers': the same sequences in the same order with the same scores."""

from __future__ import annotations

import functools
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit import LLM
from llmkit.contracts import BeamSearch, SamplingParams, TokenLogprob
from llmkit.frontend.beam import Beams
from llmkit.testing import bytes_tokenizer, tiny
from llmkit.types import FinishReason

PROMPT = [*b"the end of the beginning"]  # more than one block
CLOSE = 2e-4
"""Of scores: both sum float32 logprobs, over different kernels."""
SETTINGS = {"dtype": "float32", "quantization": "torch", "max_model_len": 200, "max_num_seqs": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tiny.build(tmp_path_factory.mktemp("beams"), "LlamaForCausalLM")
    names = bytes_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), max_position_embeddings=256)
    for file in names.iterdir():
        if not (path / file.name).exists():
            shutil.copy(file, path / file.name)
    return path


@pytest.fixture(scope="module")
def reference():
    model = tiny.make("LlamaForCausalLM")
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def llm(checkpoint):
    with LLM(str(checkpoint), **SETTINGS) as llm:
        yield llm


def theirs(reference, prompt, *, width, n, length_penalty, early_stopping, max_tokens, ends, min_tokens):
    """(tokens, score) of transformers' choices."""
    with torch.no_grad():
        answer = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=n,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=max_tokens,
            min_new_tokens=min_tokens or None,
            eos_token_id=list(ends) or None,
            pad_token_id=tiny.VOCAB_SIZE - 1,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = []
    for sequence, score in zip(answer.sequences, answer.sequences_scores, strict=True):
        tokens = sequence[len(prompt) :].tolist()
        end = next((at + 1 for at, token in enumerate(tokens) if token in ends and at >= min_tokens), None)
        found.append((tokens[: end or max_tokens], score.item()))
    return found


def end_tokens(reference, prompt, count):
    """Tokens that beams come upon after a few steps, so that some beams end before others."""
    asked = {"width": 4, "n": 4, "length_penalty": 1.0, "early_stopping": False, "max_tokens": 12}
    seen = [tokens for tokens, _ in theirs(reference, prompt, **asked, ends=(), min_tokens=0)]
    return tuple(dict.fromkeys(token for at in (3, 6, 9) for token in (beam[at] for beam in seen)))[:count]


@pytest.mark.parametrize(
    ("width", "n", "length_penalty", "early_stopping", "num_ends", "min_tokens"),
    [
        (4, 4, 1.0, False, 2, 0),
        (3, 2, 0.0, True, 1, 0),
        (5, 5, 2.0, False, 3, 0),
        (5, 3, -0.5, True, 3, 0),
        (4, 4, 1.0, False, 2, 5),
        (2, 1, 0.7, False, 0, 0),
        (3, 3, 1.0, "never", 3, 0),
        (4, 2, 2.0, "never", 3, 0),
        (4, 4, -0.5, "never", 3, 0),
        (12, 12, 1.0, False, 2, 0),  # more alternatives than a client may ask for
    ],
)
def test_sequences_and_scores_are_transformers(
    llm, reference, width, n, length_penalty, early_stopping, num_ends, min_tokens
):
    ends = end_tokens(reference, PROMPT, num_ends)
    expected = theirs(
        reference,
        PROMPT,
        width=width,
        n=n,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_tokens=20,
        ends=ends,
        min_tokens=min_tokens,
    )
    params = SamplingParams(
        n=n,
        max_tokens=20,
        min_tokens=min_tokens,
        stop_token_ids=ends,
        ignore_eos=True,
        logprobs=1,
        beam_search=BeamSearch(width, length_penalty, early_stopping),
    )
    (output,) = llm.generate([PROMPT], params)
    assert [choice.token_ids for choice in output.choices] == [tokens for tokens, _ in expected]
    for choice, (tokens, score) in zip(output.choices, expected, strict=True):
        logprob = sum(position.sampled.logprob for position in choice.logprobs)
        assert logprob / len(tokens) ** length_penalty == pytest.approx(score, abs=CLOSE)
        assert [position.sampled.token_id for position in choice.logprobs] == tokens
        assert {len(position.top) for position in choice.logprobs} == {1}
        ended = tokens[-1] in ends and len(tokens) > min_tokens
        assert choice.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert choice.stop_reason == (tokens[-1] if ended else None)


def test_a_search_beside_others_leaves_nothing_in_the_engine(llm):
    search = SamplingParams(max_tokens=8, beam_search=BeamSearch(3), n=3)
    alone = llm.generate([PROMPT], search)[0]
    together = llm.generate([PROMPT, PROMPT, [*b"else"]], [search, SamplingParams(max_tokens=5), search])
    assert [choice.token_ids for choice in together[0].choices] == [c.token_ids for c in alone.choices]
    assert len(together[1].choices) == 1
    assert len({tuple(choice.token_ids) for choice in together[2].choices}) == 3
    assert llm.generate([PROMPT], SamplingParams(max_tokens=0, beam_search=BeamSearch(2)))[0].text == ""
    assert (llm._engine.stats.running, llm._engine.stats.blocks_held) == (0, 0)


def test_a_beams_token_shows_as_many_alternatives_as_were_asked_for(llm):
    params = SamplingParams(max_tokens=3, logprobs=7, beam_search=BeamSearch(2))
    (choice,) = llm.generate([PROMPT], params)[0].choices
    assert [len(position.top) for position in choice.logprobs] == [7] * 3


def test_many_ends_do_not_multiply_the_alternatives():
    beams = Beams(BeamSearch(128), range(128), max_tokens=9, min_tokens=3)
    assert beams.alternatives == 256


class Table:
    """A model of a few tokens whose next distribution depends on the last token and the length."""

    def __init__(self, seed, vocab):
        self.seed, self.vocab = seed, vocab

    @functools.cache  # noqa: B019  a table lives as long as one example
    def after(self, tokens):
        generator = torch.Generator().manual_seed(hash((self.seed, tokens)) % (1 << 62))
        logits = torch.randn(self.vocab, generator=generator, dtype=torch.float64) * 2
        return torch.log_softmax(logits, -1).tolist()


def searched(table, search, ends, max_tokens):
    beams = Beams(search, ends, max_tokens)
    while not beams.ended:
        likeliest = []
        for beam in beams.open:
            row = sorted(enumerate(table.after(tuple(beam.token_ids))), key=lambda item: -item[1])
            likeliest.append([TokenLogprob(token, value) for token, value in row[: beams.alternatives]])
        beams.advance(likeliest)
    return beams.best(search.width)


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_a_wide_search_finds_the_likeliest_of_all(seed, num_ends, max_tokens):
    """With as many beams as there are texts nothing is pruned: the best one is the best there is."""
    table, ends = Table(seed, 4), tuple(range(num_ends))
    best = searched(table, BeamSearch(4**5, length_penalty=0.0), ends, max_tokens)
    scores = {(): 0.0}
    complete = {}
    for length in range(1, max_tokens + 1):
        grown = {
            (*tokens, token): score + value
            for tokens, score in scores.items()
            for token, value in enumerate(table.after(tokens))
        }
        done = {t: s for t, s in grown.items() if t[-1] in ends or length == max_tokens}
        complete |= done
        scores = {t: s for t, s in grown.items() if t not in done}
    likeliest = max(complete, key=complete.__getitem__)
    assert tuple(best[0].token_ids) == likeliest
    assert best[0].score == pytest.approx(complete[likeliest])


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.sampled_from([-1.0, 0.0, 0.8, 1.0, 2.0]),
    st.sampled_from([False, True, "never"]),
)
@settings(max_examples=60, deadline=None)
def test_what_a_search_gives(seed, width, length_penalty, early_stopping):
    table, ends = Table(seed, 12), (0, 5)
    best = searched(table, BeamSearch(width, length_penalty, early_stopping), ends, 7)
    assert len(best) == width
    assert [beam.score for beam in best] == sorted((beam.score for beam in best), reverse=True)
    assert len({tuple(beam.token_ids) for beam in best}) == width
    for beam in best:
        tokens = beam.token_ids
        logprob = sum(table.after(tuple(tokens[:at]))[token] for at, token in enumerate(tokens))
        assert beam.score == pytest.approx(logprob / len(tokens) ** length_penalty)
        assert not set(tokens[:-1]) & set(ends)
        assert (beam.finish is FinishReason.STOP) == (tokens[-1] in ends)
        assert tokens[-1] in ends or len(tokens) == 7


def test_a_search_that_never_ends_early_finds_what_a_heuristic_leaves():
    """With a reward for length, a beam that loses now may win later."""
    better = 0
    for seed in range(20):
        table, ends = Table(seed, 12), (0, 5)
        soon, late = (
            searched(table, BeamSearch(3, 2.0, early_stopping), ends, 12)[-1].score
            for early_stopping in (False, "never")
        )
        assert late >= soon
        better += late > soon
    assert better
