"""Random mixes: who asks what and when, of an engine set up how; and what must not differ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmkit.config import CacheConfig, Config, ModelConfig, SchedulerConfig, SpeculationConfig
from llmkit.fold import FoldedChoice
from tests.differential.asks import AMONG, Ask, Solo, catalogue
from tests.differential.clients import Arrival, Outcome
from tests.differential.engine import Engine, Opened
from tests.differential.model import MAX_MODEL_LEN

CATALOGUE = 32
"""Asks that mixes draw from; each is run alone once."""
MIXES_A_CATALOGUE = 12
REQUESTS = 24
CROWD = 6
"""Of these, the ones that come together, short, and grow: so that blocks run out."""
MODEL = ModelConfig(deterministic=True, max_model_len=MAX_MODEL_LEN)
SOLO = Config(
    model=MODEL,
    cache=CacheConfig(num_gpu_blocks_override=200, enable_prefix_caching=False),
    scheduler=SchedulerConfig(max_num_batched_tokens=512),
)
"""As plain as can be: nothing shared, nothing cut, nobody beside."""
_GROUPS = {"full": 1, "windowed": 3}
"""Groups of KV blocks: layers of a kind are cut into as many as there are of the rarest."""
_LONGEST = -(-MAX_MODEL_LEN // 16)


@dataclass
class Mix:
    """One engine's set-up and what comes its way."""

    seed: int
    kind: str
    config: Config
    arrivals: list[Arrival]


@dataclass
class Model:
    """A tiny model, the engine that answers alone, and what it has answered."""

    kind: str
    opened: Opened
    solo_engine: Engine
    _answers: dict[str, Outcome] = field(default_factory=dict)
    _catalogues: dict[int, list[Ask]] = field(default_factory=dict)

    def asks(self, number: int) -> list[Ask]:
        """The catalogue of this number."""
        if number not in self._catalogues:
            rng = random.Random(f"{self.kind} {number}")
            self._answers.clear()
            self._catalogues = {number: catalogue(rng, self.solo, CATALOGUE)}
        return self._catalogues[number]

    def solo(self, ask: Ask) -> Outcome:
        if ask.name not in self._answers:
            self._answers[ask.name] = self.solo_engine.alone(ask)
        return self._answers[ask.name]


def draw(seed: int, model: Model) -> Mix:
    """The mix of this seed, always the same."""
    rng = random.Random(f"mix {seed}")
    asks = model.asks(seed // MIXES_A_CATALOGUE)
    arrivals = [_arrival(rng, rng.choice(asks)) for _ in range(REQUESTS - CROWD)]
    growing = [ask for ask in asks if ask.free and len(ask.prompt) < AMONG]
    arrivals += [Arrival(rng.randrange(12), rng.choice(growing or asks)) for _ in range(CROWD)]
    return Mix(seed, model.kind, _config(rng, _GROUPS[model.kind], model.opened.directory), arrivals)


def _arrival(rng: random.Random, ask: Ask) -> Arrival:
    return Arrival(
        rng.choice([0, rng.randrange(120)]),
        ask,
        leaves=rng.choice([None] * 8 + ["prefill"] * 3 + [1, rng.randrange(2, 40)]),
        priority=rng.randrange(-2, 3),
        caller=rng.choice("abc"),
        abort_lag=rng.choice([0, 0, 1, 3]),
    )


def _config(rng: random.Random, groups: int, directory: Path) -> Config:
    seats = rng.choice([3, 8, 24, 24, 24])
    blocks = 1 + groups * (_LONGEST + 1) + rng.choice([0, 0, 0, 5, 60])
    caching = rng.random() < 0.8
    return Config(
        model=MODEL,
        cache=CacheConfig(
            num_gpu_blocks_override=blocks,
            enable_prefix_caching=caching,
            kv_connector="offload" if caching and rng.random() < 0.85 else None,
            kv_offload_bytes=rng.choice([1 << 20, 1 << 23]),
        ),
        speculation=_speculation(rng, directory),
        scheduler=SchedulerConfig(
            async_scheduling=rng.random() < 0.5,
            scheduling_policy=rng.choice(["fcfs", "priority", "fair"]),
            max_num_seqs=seats,
            max_num_batched_tokens=max(seats, rng.choice([16, 33, 64, 512])),
        ),
    )


def _speculation(rng: random.Random, directory: Path) -> SpeculationConfig:
    """Guesses that are seldom right, and those of the model itself, which often are."""
    match rng.randrange(4):
        case 0 | 1:
            return SpeculationConfig(
                speculator="ngram", num_speculative_tokens=rng.choice([1, 4, 7]), prompt_lookup_min=1
            )
        case 2:
            return SpeculationConfig(
                speculator="draft", num_speculative_tokens=rng.choice([1, 3]), draft_model=str(directory)
            )
        case _:
            return SpeculationConfig()


# ---- what must not differ ----


def differences(mix: Mix, outcomes: list[Outcome], solo: Solo) -> Iterator[str]:
    """One line for each choice that is not what it is alone."""
    for arrival, outcome in zip(mix.arrivals, outcomes, strict=True):
        alone = solo(arrival.ask).choices
        for index, (got, wanted) in enumerate(zip(outcome.choices, alone, strict=True)):
            difference = _difference(got, wanted, outcome.left)
            if difference is not None:
                where = f"mix {mix.seed}: {arrival.ask.name}, choice {index}"
                yield f"{where}: {difference}\n  {arrival}\n  {mix.config}"


def _difference(got: FoldedChoice, wanted: FoldedChoice, left: bool) -> str | None:
    """Of a client that left, all that it saw must be how the answer begins."""
    if not left and len(got.token_ids) != len(wanted.token_ids):
        return f"{len(got.token_ids)} tokens, alone {len(wanted.token_ids)}"
    for place, (mine, theirs) in enumerate(zip(got.token_ids, wanted.token_ids, strict=False)):
        if mine != theirs:
            return f"token {place} is {mine}, alone {theirs}"
    if got.logprobs != wanted.logprobs[: len(got.token_ids)]:
        return "the logprobs differ"
    if left:  # of what it saw, the prompt's logprobs are all or nothing
        if got.prompt_logprobs not in (None, wanted.prompt_logprobs):
            return "the prompt's logprobs differ"
        return None if wanted.text.startswith(got.text) else "the text differs"
    if got.finish != wanted.finish:
        return f"it ended with {got.finish}, alone with {wanted.finish}"
    if got.prompt_logprobs != wanted.prompt_logprobs:
        return "the prompt's logprobs differ"
    return None if got.text == wanted.text else "the text differs"
