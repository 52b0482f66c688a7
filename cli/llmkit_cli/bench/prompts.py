"""Prompts of a wanted length in tokens, all different, optionally beginning alike."""

from __future__ import annotations

import random
from collections.abc import Callable

WORDS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind "
    "head house service friend father power hour game line end member law car city community name team"
).split()


def make_prompts(
    count: int, tokens: int, shared: int, seed: int, count_tokens: Callable[[str], int] | None
) -> list[str]:
    """``count`` distinct prompts of about ``tokens`` tokens, the first ``shared`` of them in common.

    With ``count_tokens`` each is exact to within a word; without, a word is taken for a token.
    """
    rng = random.Random(seed)
    prefix = _text(rng, shared, count_tokens)
    bodies = [_text(rng, max(tokens - shared, 1), count_tokens) for _ in range(count)]
    return [f"{prefix} {body}".strip() for body in bodies]


def _text(rng: random.Random, tokens: int, count_tokens: Callable[[str], int] | None) -> str:
    words = [rng.choice(WORDS) for _ in range(tokens)]
    if count_tokens is None or not words:
        return " ".join(words)
    while len(words) > 1 and count_tokens(" ".join(words)) > tokens:
        words.pop()
    return " ".join(words)
