"""What the clients of a random mix ask for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from llmkit.contracts import BeamSearch, SamplingParams, StructuredOutput
from llmkit.testing.bytes_tokenizer import EOS_ID
from tests.differential import processor
from tests.differential.clients import Outcome
from tests.differential.model import VOCAB_SIZE

BLOCK = 16
DISTINCT, AMONG = 50, 64
"""So many different tokens are among the first so many that a free request gets alone."""


@dataclass(frozen=True)
class Ask:
    """One request of a client."""

    name: str
    prompt: list[int] = field(repr=False)
    params: SamplingParams
    cache_salt: str | None = None

    @property
    def free(self) -> bool:
        """Nothing keeps its choice small: its output is as varied as the model's."""
        return self.name.split("/")[0] in FREE


Solo = Callable[[Ask], Outcome]
Params = dict[str, Any]


def catalogue(rng: random.Random, solo: Solo, size: int) -> list[Ask]:
    """``size`` asks whose prompts share beginnings; some continue or hinge on what others answer alone."""
    prompts = list(_prompts(rng, 1 + size // 3))
    asks: list[Ask] = []
    for number in range(size):
        kind = list(KINDS)[number] if number < len(KINDS) else rng.choice([*OTHERS, *FREE, *FREE])
        prompt = prompts[number] if number < len(prompts) else rng.choice(prompts)
        params = _params(KINDS[kind](rng), rng)
        asks.append(Ask(f"{kind}/{number}", prompt, params, rng.choice([None, None, None, "salted"])))
    for number, ask in enumerate(asks):
        if not ask.free and ask.params.beam_search is None:
            hinge = HINGES[number % len(HINGES)]
            asks[number] = hinge(rng, ask, rng.choice([a for a in asks if a.free]), solo)
    return asks


# ---- prompts ----


def _prompts(rng: random.Random, count: int) -> Iterator[list[int]]:
    """Short and long ones, that end in a block or with it, and begin like each other."""
    stories = [_tokens(rng, 12 * BLOCK) for _ in range(2)]
    for _ in range(count):
        story = rng.choice(stories)
        match rng.randrange(5):
            case 0 | 1:  # many fit, until they have grown
                yield _tokens(rng, rng.randrange(1, 40))
            case 2:  # whole blocks: a hit may cover all of it
                yield story[: BLOCK * rng.randrange(1, 12)]
            case 3:
                yield story[: rng.randrange(1, 11 * BLOCK)]
            case _:
                yield story[: rng.randrange(BLOCK, 10 * BLOCK)] + _tokens(rng, rng.randrange(1, 20))


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(EOS_ID) for _ in range(count)]


# ---- parameters ----


def _params(kind: Params, rng: random.Random) -> SamplingParams:
    common = {
        "max_tokens": rng.choice([1, 5, 24, AMONG, AMONG, AMONG]),
        "seed": rng.randrange(1 << 40),
        "logprobs": rng.choice([None, None, 0, 3]),
        "prompt_logprobs": rng.choice([None, None, None, None, 0, 2]),
        "n": rng.choice([1, 1, 1, 2, 3]),
    }
    return SamplingParams(**(common | kind))


def _free(kind: Params) -> Callable[[random.Random], Params]:
    return lambda rng: {"ignore_eos": True, "max_tokens": AMONG} | kind


def _few_tokens(rng: random.Random) -> Params:
    """Few tokens may come, so that drafts are right now and then."""
    allowed = rng.sample(range(VOCAB_SIZE), rng.randrange(2, 5))
    return {"logit_bias": dict.fromkeys(allowed, 60.0), "temperature": rng.choice([0, 0.7])}


FREE: dict[str, Callable[[random.Random], Params]] = {
    "greedy": _free({"temperature": 0, "n": 1}),
    "sampled": _free({"temperature": 1.0}),
    "nucleus": _free({"temperature": 1.0, "top_p": 0.95, "top_k": 400}),
    "penalised": _free({"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "n": 1}),
}
OTHERS: dict[str, Callable[[random.Random], Params]] = {
    "cool": lambda rng: {"temperature": 0.6, "min_p": 0.05, "frequency_penalty": 0.7},
    "narrow": lambda rng: {"temperature": 0.9, "top_k": rng.choice([1, 2, 5])},
    "ends": lambda rng: {"temperature": 0.8, "logit_bias": {EOS_ID: rng.choice([1.0, 3.0, 5.0])}},
    "ends late": lambda rng: {
        "temperature": 1.0,
        "logit_bias": {EOS_ID: 6.0},
        "min_tokens": 9,
        "max_tokens": 40,
    },
    "few tokens": _few_tokens,
    "allowed": lambda rng: {"allowed_token_ids": tuple(rng.sample(range(VOCAB_SIZE), 6)), "temperature": 0.9},
    "score": lambda rng: {"max_tokens": 0, "prompt_logprobs": 2, "n": 1},
    "processed": lambda rng: {"plugin_args": {processor.NAME: rng.choice([2.5, 9.0])}, "temperature": 0.9},
    "json": lambda rng: {"structured": StructuredOutput(kind="json", source=rng.choice(SCHEMAS))},
    "pattern": lambda rng: {"structured": StructuredOutput(kind="regex", source=rng.choice(PATTERNS))},
    "choice": lambda rng: {"structured": StructuredOutput(kind="choice", source=rng.choice(CHOICES))},
    "beams": lambda rng: {
        "beam_search": BeamSearch(3, length_penalty=rng.choice([0.5, 1.0])),
        "temperature": 0,
        "max_tokens": 12,
        "n": 2,
        "prompt_logprobs": None,
    },
}
SCHEMAS = tuple(
    json.dumps(schema)
    for schema in (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["red", "green", "a rather long blue"]},
                "size": {"type": "integer", "minimum": 0, "maximum": 400},
            },
            "required": ["name", "kind", "size"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 6},
    )
)
PATTERNS = ("[a-z]{5,40}", "(one|two|three)( and (four|five))+", "[0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z")
CHOICES = (json.dumps(["yes", "yes and no", "no"]), json.dumps(["a long answer, forced to its end", "short"]))
KINDS = FREE | OTHERS
"""Name -> what a request of this kind asks of the sampler, beside what every request may ask."""


# ---- asks that hinge on what another one answers ----


def _stop_string(rng: random.Random, ask: Ask, other: Ask, solo: Solo) -> Ask:
    """The other's request, cut by a piece of its own text."""
    text = rng.choice(solo(other).choices).text
    start = rng.randrange(len(text) // 2)
    stop = (text[start : start + rng.randrange(1, 6)], "never comes")
    return _like(other, ask, stop=stop, include_stop_str_in_output=rng.random() < 0.5)


def _stop_token(rng: random.Random, ask: Ask, other: Ask, solo: Solo) -> Ask:
    tokens = rng.choice(solo(other).choices).token_ids
    return _like(other, ask, stop_token_ids=(rng.choice(tokens),), min_tokens=rng.choice([0, 7]))


def _bad_words(rng: random.Random, ask: Ask, other: Ask, solo: Solo) -> Ask:
    """The other's request, without some of what it said: single characters, and a few in a row."""
    text = rng.choice(solo(other).choices).text
    words = {text[start : start + rng.choice([1, 1, 2])] for start in rng.sample(range(len(text) - 2), 8)}
    printable = tuple(sorted(word for word in words if word.isprintable() and word.strip() == word))
    return _like(other, ask, bad_words=printable)


def _thinking(rng: random.Random, ask: Ask, other: Ask, solo: Solo) -> Ask:
    """The other's request, as thinking that ends when it must; a structured answer may follow."""
    own = random.Random(ask.name)
    then = own.choice([None, None, StructuredOutput(kind="json", source=own.choice(SCHEMAS))])
    return _like(other, ask, thinking_token_budget=own.choice([0, 1, 9, 20]), structured=then)


def _next_turn(rng: random.Random, ask: Ask, other: Ask, solo: Solo) -> Ask:
    """Goes on from all that the other said."""
    answer = solo(other).choices[0].token_ids
    return Ask(
        ask.name + "/next turn", [*other.prompt, *answer, *_tokens(rng, 3)], ask.params, other.cache_salt
    )


def _itself(rng: random.Random, ask: Ask, other: Ask, solo: Solo) -> Ask:
    return ask


HINGES: Sequence[Callable[[random.Random, Ask, Ask, Solo], Ask]] = (
    _itself,
    _stop_string,
    _next_turn,
    _stop_token,
    _thinking,
    _bad_words,
)


def _like(other: Ask, ask: Ask, **changes: Any) -> Ask:
    kind = "/".join(islice(changes, 1))
    params = msgspec.structs.replace(other.params, **changes)
    return Ask(f"{kind}/{ask.name}", other.prompt, params, other.cache_salt)
