"""One text: whatever a request shares an engine with, it gets what it gets alone, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.differential import model as tiny_model
from tests.differential.asks import AMONG, DISTINCT
from tests.differential.engine import Engine, Opened
from tests.differential.mixes import SOLO, Mix, Model, differences, draw

EVENTS = (
    "preemption",
    "copy on write",
    "cache hit",
    "chunk",
    "abort in prefill",
    "offload hit",
    "stop string",
    "left",
    "accepted draft",
    "refused draft",
    "forced token",
    "used up budget",
)
EACH = 20
"""How often each has to happen for a run to mean something."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Model]]:
    made = []
    for kind in tiny_model.ARCHITECTURES:
        opened = Opened(tiny_model.write(tmp_path_factory.mktemp(kind), kind))
        made.append(Model(kind, opened, Engine(SOLO, opened)))
    yield made
    for model in made:
        model.solo_engine.close()
        model.opened.close()


def run(mix: Mix, model: Model) -> tuple[list[str], Counter[str]]:
    """What differs from the solo runs, and what happened."""
    engine = Engine(mix.config, model.opened)
    try:
        outcomes = engine.mix(mix.arrivals)
    finally:
        engine.close()
    return list(differences(mix, outcomes, model.solo)), engine.events


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(12, id="12-mixes"),
        pytest.param(200, id="200-mixes", marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
    ],
)
def test_a_request_gets_the_same_in_every_mix(models: list[Model], count: int) -> None:
    different: list[str] = []
    events: Counter[str] = Counter()
    for seed in range(count):
        model = models[seed % len(models)]
        found, happened = run(draw(seed, model), model)
        different += found
        events += happened
    print(f"{count} mixes:", dict(events))
    assert not different, "\n".join(different[:5])
    rare = {event: events[event] for event in EVENTS if events[event] < EACH}
    assert not rare, f"happened too seldom: {rare}"


def test_answers_are_varied_enough_to_notice_a_wrong_one(models: list[Model]) -> None:
    for model in models:
        for ask in model.asks(0):
            if ask.free:
                for choice in model.solo(ask).choices:
                    assert len(choice.token_ids) == AMONG
                    assert len(set(choice.token_ids)) >= DISTINCT, ask.name
