"""Which file or directory of a tree is the model, and what tells one version of it from another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from llmkit import ModelNotFound
from llmkit.contracts import ModelFiles, listing

_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_WEIGHTS = (".safetensors", ".gguf")
MAX_LISTED = 20


def first_part(path: Path) -> Path:
    """The first part of the multi-part GGUF that ``path``, any part, belongs to; else ``path``."""
    return path.with_name(_PART.sub(r"-00001-of-\1.gguf", path.name))


def gguf_models(names: Iterable[str]) -> list[str]:
    """The GGUF models among file names: each one's first part, sorted."""
    found = {_PART.sub(r"-00001-of-\1.gguf", name) for name in names if name.endswith(".gguf")}
    return sorted(name for name in found if not Path(name).name.startswith("mmproj"))


def gguf_parts(name: str, names: Iterable[str]) -> list[str]:
    """Every part of the model whose first part is ``name``, among ``names``."""
    return sorted(other for other in names if _PART.sub(r"-00001-of-\1.gguf", other) == name)


def with_quantization(models: Iterable[str], quantization: str) -> list[str]:
    """Those whose file name carries ``quantization`` as a word, as ``model.Q4_K_M.gguf`` does."""
    word = re.compile(rf"(?<![a-z0-9]){re.escape(quantization.lower())}(?![a-z0-9_])")
    return [name for name in models if word.search(Path(name).name.lower())]


def model_in(root: Path, looked_for: str) -> Path:
    """``root`` itself where it is in the Hugging Face layout, else the one GGUF model in it.

    :raises ModelNotFound: it holds neither, or several GGUF models.
    """
    if (root / "config.json").is_file():
        return root
    models = gguf_models(path.name for path in root.glob("*.gguf"))
    if len(models) == 1:
        return root / models[0]
    if models:
        raise ModelNotFound(f"{looked_for}: {root} holds several .gguf models; give one: {shortened(models)}")
    raise ModelNotFound(f"{looked_for}: {root} holds neither a config.json nor a .gguf file")


def local_files(path: Path, name: str) -> ModelFiles:
    """``path`` as :class:`ModelFiles`; its identity is the sizes and times of what it is made of."""
    if path.is_dir():
        parts = sorted(p for p in path.iterdir() if p.suffix in _WEIGHTS or p.name == "config.json")
    else:
        count = _PART.search(path.name)
        pattern = _PART.sub(r"-[0-9][0-9][0-9][0-9][0-9]-of-\1.gguf", path.name) if count else path.name
        parts = sorted(path.parent.glob(pattern)) if count else [path]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        status = part.stat()
        digest.update(f"{part.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return ModelFiles(path=str(path), name=name, identity=f"files:{digest.hexdigest()}")


def shortened(names: list[str]) -> str:
    """A list for a message, cut where it is long."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return listing(names[:MAX_LISTED]) + more
