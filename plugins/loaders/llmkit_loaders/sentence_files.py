"""What sentence-transformers' files beside a checkpoint say of how it pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import CheckpointInfo, PoolingSpec, listing
from llmkit_loaders.hf_directory import MAX_JSON_BYTES, read_json

_TYPES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
"""Flag -> what it switches on here. Others with this beginning are known, and not supported."""
_NAMES = {"cls": "cls", "lasttoken": "last", "mean": "mean"}
"""The same in files that name one mode."""


def with_pooling(info: CheckpointInfo, root: Path) -> CheckpointInfo:
    """``info`` with ``pooling`` as the files say, where there are such files."""
    return replace(info, pooling=read_pooling(root, info.config))


def read_pooling(root: Path, config: dict[str, Any]) -> PoolingSpec | None:
    """None where the directory has no ``modules.json``.

    :raises CheckpointError: a file is corrupt. :raises UnsupportedModel: it pools in a way that is not known.
    """
    modules = _modules(root)
    if modules is None:
        return None
    kinds = [kind for kind, _ in modules]
    poolings = [root / path for kind, path in modules if kind == "Pooling"]
    unknown = set(kinds) - {"Transformer", "Pooling", "Dense", "Normalize"}
    if unknown or len(poolings) != 1 or kinds[:2] != ["Transformer", "Pooling"]:
        raise UnsupportedModel(
            f"{root / 'modules.json'}: its modules are {listing(kinds)}; known are a Transformer, a Pooling,"
            " and Dense and Normalize behind them"
        )
    if "Normalize" in kinds and "Dense" in kinds[kinds.index("Normalize") :]:
        raise UnsupportedModel(f"{root / 'modules.json'}: a Dense module behind Normalize is not known")
    pooling = read_json(poolings[0] / "config.json")
    sentences, extras = _sentence_config(root), read_json(root / "config_sentence_transformers.json")
    dense = tuple(path for kind, path in modules if kind == "Dense")
    longest, prompts = sentences.get("max_seq_length"), extras.get("prompts")
    return PoolingSpec(
        type=_type(poolings[0], pooling),
        normalize="Normalize" in kinds,
        dense=dense,
        max_length=longest if isinstance(longest, int) else None,
        lower_case=bool(sentences.get("do_lower_case", False)),
        prompts={str(name): str(text) for name, text in prompts.items()} if isinstance(prompts, dict) else {},
        default_prompt=extras.get("default_prompt_name"),
        prompt_counts=bool(pooling.get("include_prompt", True)),
        matryoshka=bool(config.get("is_matryoshka") or config.get("matryoshka_dimensions")),
        dimensions=tuple(config.get("matryoshka_dimensions") or ()),
        size=_out_features(root / dense[-1]) if dense else None,
        similarity="dot" if extras.get("similarity_fn_name") == "dot" else "cosine",
    )


def _modules(root: Path) -> list[tuple[str, str]] | None:
    """(kind, folder) in order."""
    path = root / "modules.json"
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} has more than {MAX_JSON_BYTES} bytes")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        entries = sorted(entries, key=lambda entry: entry["idx"])
        found = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is corrupt: {error!r}") from None
    if any(Path(folder).is_absolute() or ".." in Path(folder).parts for _, folder in found):
        raise CheckpointError(f"{path} is corrupt: it names a folder outside of its own")
    return found


def _sentence_config(root: Path) -> dict[str, Any]:
    """The Transformer module's own file, which older versions call after their model."""
    for name in ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlnet_config.json"):
        if found := read_json(root / name):
            return found
    return {}


def _type(folder: Path, config: dict[str, Any]) -> Any:
    named = config.get("pooling_mode")
    if isinstance(named, str):
        on = [named]
        known = [_NAMES[named]] if named in _NAMES else []
    else:
        on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        known = [_TYPES[key] for key in on if key in _TYPES]
    if len(on) != 1 or not known:
        raise UnsupportedModel(
            f"{folder / 'config.json'}: pooling modes {listing(on)}; one of {listing(_TYPES)} is known"
        )
    return known[0]


def _out_features(folder: Path) -> int | None:
    size = read_json(folder / "config.json").get("out_features")
    return size if isinstance(size, int) else None
