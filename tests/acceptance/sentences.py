"""Fifty sentences of many lengths and kinds, for whatever compares embeddings."""

_SUBJECTS = (
    "A cat", "The committee", "Our neighbour's old tractor", "Rain", "Nobody in the village",
    "Der Zug", "Une équipe de chercheurs", "東京の朝", "She", "A stack of unread letters",
)  # fmt: skip
_ENDINGS = (
    "sleeps.",
    "was late again, and nobody minded; the meeting began at nine all the same.",
    "cost 1,299.00 EUR in 2019 (VAT included) — why?",
    "is what they had been waiting for, " * 6 + "until the lights went out.",
    "🙂 fits into the box!",
)

SENTENCES = tuple(f"{subject} {ending}" for subject in _SUBJECTS for ending in _ENDINGS)
"""The last of them have about 60 tokens, the first ones 5."""
