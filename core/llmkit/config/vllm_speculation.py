"""vLLM's ``--speculative-config``: one JSON object, read as the settings it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmkit.text import listing, nearest

_METHODS = {"ngram": "ngram", "[ngram]": "ngram", "draft_model": "draft", "draft": "draft"}
_FIELDS = {
    "model": "draft_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
}
"""vLLM's key -> the setting here; ``method`` is apart."""
_ONLY: Mapping[str, Callable[[Any], bool]] = {"draft_tensor_parallel_size": lambda value: value == 1}
"""Keys that change nothing here with the values they are allowed."""


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Field of ``SpeculationConfig`` -> value.

    Without a ``method``, a ``model`` drafts, as in vLLM; there the model ``ngram`` is a method.

    :raises ValueError: a key is unknown or has no meaning here; its words continue ``WHERE: ``.
    """
    given = {key: value for key, value in config.items() if value is not None}
    method = given.pop("method", None)
    if method is None and given.get("model") in ("ngram", "[ngram]"):
        method = given.pop("model")
    if method is None and "model" in given:
        method = "draft_model"
    if not isinstance(method, str) or method not in _METHODS:
        raise ValueError(f"method is {method!r}; there are ngram and draft_model")
    found = {"speculator": _METHODS[method]}
    for key, value in given.items():
        if key in _FIELDS:
            found[_FIELDS[key]] = value
        elif key not in _ONLY or not _ONLY[key](value):
            raise ValueError(_refusal(key, value))
    return found


def _refusal(key: str, value: Any) -> str:
    if key in _ONLY:
        return f"{key} is {value!r}; the draft model runs on one rank"
    known = ["method", *_FIELDS, *_ONLY]
    guess = nearest(key, known)
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"{key!r} has no meaning here{hint} Known: {listing(known)}"
