"""Entry point: imported by every llmkit process, so without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

import llmkit

if TYPE_CHECKING:
    from llmkit.contracts import ModelDraft, RequestDraft


MAX_STRENGTH = 1000.0
"""Either way; far beyond it activations are no numbers any more."""


@dataclass(frozen=True)
class Options:
    """Set by ``--plugin-option steering.vectors=...``."""

    vectors: str
    """A safetensors file: name -> direction, [hidden]."""
    layer: int
    """Behind which decoder layer they are added."""


class Steer(msgspec.Struct, frozen=True, array_like=True):
    """What a steered request carries to the workers."""

    name: str
    strength: float


@llmkit.hookimpl
def prepare_request(draft: RequestDraft, options: Options) -> None:
    """``plugin_args: {"steering": {"name": "calm", "strength": 4}}``"""
    if not draft.plugin_args:
        return
    try:
        steer = msgspec.convert(dict(draft.plugin_args), _Arguments)
    except msgspec.ValidationError as error:
        draft.refuse(f"plugin_args.steering: {error}")
    names = known(options.vectors)
    if steer.name not in names:
        draft.refuse(f"plugin_args.steering: no direction is called {steer.name!r:.80}; known: {names}")
    data = msgspec.msgpack.encode(Steer(steer.name, steer.strength))
    draft.attach(data)
    # What is computed for this prompt is of use to requests steered in the same way alone.
    draft.cache_key(data)


@llmkit.hookimpl
def prepare_model(draft: ModelDraft, options: Options) -> None:
    from llmkit_steering.tap import SteeringTap

    draft.tap(options.layer, SteeringTap(options.vectors, draft.spec), f"directions of {options.vectors}")


def known(path: str) -> list[str]:
    """Names in the file; reads its header alone."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return sorted(file.keys())


class _Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    strength: Annotated[float, msgspec.Meta(ge=-MAX_STRENGTH, le=MAX_STRENGTH)] = 1.0
