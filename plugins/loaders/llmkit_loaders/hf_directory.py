"""A directory in the Hugging Face layout: its config files, read with bounds and clear errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmkit import CheckpointError, UnsupportedModel
from llmkit.contracts import CheckpointInfo

MAX_JSON_BYTES = 64 << 20
"""Larger than any index of shards; tokenizer.json has its own bound."""


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """An object from a file; empty where there is no file.

    :raises CheckpointError: it is too large, no JSON or no object.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if size > limit:
        raise CheckpointError(f"{path} has {size} bytes; at most {limit} are read")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is corrupt: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is corrupt: it holds no JSON object")
    return value


def merged(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``overrides`` laid over ``config``; nested objects merge, everything else replaces."""
    result = dict(config)
    for key, value in overrides.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, dict)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def read_info(root: Path, overrides: Mapping[str, Any]) -> CheckpointInfo:
    """What the directory's JSON files say; asks for no weights.

    :raises CheckpointError: ``config.json`` is missing or a file is corrupt.
    :raises UnsupportedModel: the config names no architecture.
    """
    if not (root / "config.json").is_file():
        raise CheckpointError(f"{root / 'config.json'} is missing: it says what the model is")
    config = merged(read_json(root / "config.json"), overrides)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise UnsupportedModel(
            f"{root / 'config.json'} names no architecture; give one with --hf-overrides "
            '\'{"architectures": ["LlamaForCausalLM"]}\''
        )
    return CheckpointInfo(
        architecture=architectures[0],
        config=config,
        generation_config=read_json(root / "generation_config.json"),
        chat_template=_chat_template(root),
        encoding=_encoding(config),
    )


def _encoding(config: dict[str, Any]) -> str:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return "dense"
    return str(quantization.get("quant_method", "unknown"))


def _chat_template(root: Path) -> str | None:
    """The file wins over the entry; of several named templates the default one."""
    path = root / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} has more than {MAX_JSON_BYTES} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None
    template = read_json(root / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {
            item["name"]: item["template"]
            for item in template
            if isinstance(item, dict) and "name" in item and "template" in item
        }
        template = named.get("default")
    return template if isinstance(template, str) else None
