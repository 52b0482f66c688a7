"""Source ``local``: a directory or a ``.gguf`` file on this machine."""

from __future__ import annotations

from pathlib import Path

from llmkit import ModelNotFound
from llmkit.contracts import ModelFiles, Progress, SourceRequest
from llmkit_loaders.sources.files import first_part, local_files, model_in

_PATH_STARTS = ("/", "./", "../", "~")


class LocalSource:
    """Takes what exists, and what is spelt like a path even where it does not exist."""

    def claims(self, reference: str) -> bool:
        if reference.startswith(_PATH_STARTS) or reference in (".", "..") or reference.endswith(".gguf"):
            return True
        return Path(reference).exists()

    def resolve(self, request: SourceRequest, progress: Progress) -> ModelFiles:
        """:raises ModelNotFound: nothing is there, or no model is in it."""
        path = Path(request.reference).expanduser().absolute()
        if path.is_dir():
            found = model_in(path, f"MODEL {request.reference}")
            return local_files(found, path.name or str(path))
        if path.suffix != ".gguf" or not path.is_file():
            what = "is no directory and no .gguf file" if path.exists() else "does not exist"
            raise ModelNotFound(
                f"MODEL {request.reference}: {path} {what}; give a directory in the Hugging Face layout, a "
                ".gguf file, pkg:DIST or a hub id such as ORG/REPO"
            )
        return local_files(first_part(path), path.stem)
