"""Source ``hub``: ``ORG/REPO`` and ``ORG/REPO:QUANT`` on the Hugging Face hub.

Only the files a server needs are fetched, into huggingface_hub's own cache. With ``HF_HUB_OFFLINE=1`` the
cache alone is asked and no socket is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmkit import ModelNotFound
from llmkit.contracts import ModelFiles, Progress, SourceRequest
from llmkit_loaders.sources.files import gguf_models, gguf_parts, shortened, with_quantization

_REFERENCE = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<quantization>[\w.-]+))?$")
TIMEOUT_S = 15.0
_SENTENCE_MODULE = re.compile(r"\d+_[A-Za-z]+/(config\.json|model\.safetensors)")
"""What sentence-transformers keeps of its modules behind the transformer."""
_HELPERS = (".json", ".jinja", ".model", ".tiktoken")
_HELPER_NAMES = ("vocab.txt", "merges.txt")


class HubSource:
    """Imports huggingface_hub when it is asked to resolve, not before."""

    def claims(self, reference: str) -> bool:
        return _REFERENCE.match(reference) is not None

    def resolve(self, request: SourceRequest, progress: Progress) -> ModelFiles:
        """Fetch what is not in the cache yet, reporting as it goes.

        :raises ModelNotFound: no such repository, revision or file, or no way to the hub.
        """
        match = _REFERENCE.match(request.reference)
        if match is None:
            raise ModelNotFound(
                f"MODEL hub:{request.reference}: write ORG/REPO, or ORG/REPO:QUANT for one .gguf model of it"
            )
        repo, quantization = match["repo"], match["quantization"]
        names = self._listed(repo, request)
        if names is None:
            root = self._cached(repo, request)
            wanted = wanted_files(_names_in(root), quantization, request)
        else:
            wanted = wanted_files(names, quantization, request)
            root = self._fetched(repo, request, wanted, progress)
        model = next((name for name in wanted if name.endswith(".gguf")), None)
        path = root if model is None else root / model
        return ModelFiles(
            path=str(path),
            name=request.reference,
            identity=f"hub:{repo}@{root.name}:{model or ''}",
        )

    def _listed(self, repo: str, request: SourceRequest) -> list[str] | None:
        """The repository's files; None where only the cache can be asked."""
        from huggingface_hub import HfApi, constants, errors

        if constants.HF_HUB_OFFLINE:
            return None
        try:
            # Not list_repo_files, which retries for half a minute where there is no network.
            info = HfApi().model_info(repo, revision=request.revision, timeout=TIMEOUT_S)
            return [sibling.rfilename for sibling in info.siblings or []]
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
            raise _not_found(repo, request, error) from error
        except Exception as error:
            if self._in_cache(repo, request):
                return None  # as huggingface_hub does: what was fetched once serves without the hub
            raise _not_found(repo, request, error) from error

    def _fetched(self, repo: str, request: SourceRequest, wanted: list[str], progress: Progress) -> Path:
        from huggingface_hub import snapshot_download

        patterns = [re.sub(r"([\[?*])", r"[\1]", name) for name in wanted]
        try:
            root = snapshot_download(
                repo, revision=request.revision, allow_patterns=patterns, tqdm_class=_bar(progress)
            )
        except Exception as error:
            raise _not_found(repo, request, error) from error
        return Path(str(root))

    def _cached(self, repo: str, request: SourceRequest) -> Path:
        from huggingface_hub import errors, snapshot_download

        try:
            # No patterns: we fetch a part of a repository, and that part must do.
            root = snapshot_download(
                repo, revision=request.revision, allow_patterns=[], local_files_only=True
            )
        except (errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
            raise _not_found(repo, request, error) from error
        return Path(str(root))

    def _in_cache(self, repo: str, request: SourceRequest) -> bool:
        try:
            self._cached(repo, request)
        except ModelNotFound:
            return False
        return True


def wanted_files(names: Iterable[str], quantization: str | None, request: SourceRequest) -> list[str]:
    """What to fetch of a repository's files: one GGUF model's parts, or the Hugging Face layout.

    :raises ModelNotFound: nothing, or several things, fit.
    """
    names = sorted(names)
    looked_for = f"MODEL {request.reference}"
    weights = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    if quantization is None and weights and "config.json" in names:
        kept = [name for name in weights if not name.startswith("consolidated")] or weights
        helpers = [name for name in names if "/" not in name and _is_helper(name, request.trust_remote_code)]
        helpers += [name for name in names if _SENTENCE_MODULE.fullmatch(name)]
        return sorted(kept + helpers)
    models = gguf_models(names)
    matches = models if quantization is None else with_quantization(models, quantization)
    if len(matches) == 1:
        return gguf_parts(matches[0], names)
    if matches:
        raise ModelNotFound(
            f"{looked_for}: the repository has {len(matches)} .gguf models that fit; add :QUANT to choose "
            f"one: {shortened(matches)}"
        )
    have = f"its .gguf models: {shortened(models)}" if models else "it has neither .safetensors nor .gguf"
    raise ModelNotFound(f"{looked_for}: no such model in the repository; {have}")


def _is_helper(name: str, trust_remote_code: bool) -> bool:
    return name.endswith(_HELPERS) or name in _HELPER_NAMES or (trust_remote_code and name.endswith(".py"))


def _names_in(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]


def _not_found(repo: str, request: SourceRequest, error: Exception) -> ModelNotFound:
    """huggingface_hub has a dozen errors, httpx more; a user wants to know what to do."""
    from huggingface_hub import constants, errors

    at = f" at revision {request.revision!r}" if request.revision else ""
    if constants.HF_HUB_OFFLINE:
        why = f"it is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set"
        todo = "unset HF_HUB_OFFLINE and run it once, or give a local path"
    elif isinstance(error, errors.GatedRepoError):
        why, todo = "the repository is gated", "accept its terms on the hub and set HF_TOKEN"
    elif isinstance(error, errors.RepositoryNotFoundError):
        why, todo = "the hub has no such repository", "check the spelling; private ones need HF_TOKEN"
    elif isinstance(error, errors.RevisionNotFoundError):
        why, todo = "the repository has no such revision", "check --revision"
    else:
        first_line = (str(error).strip().splitlines() or [""])[0]
        why = f"the hub {constants.ENDPOINT} did not answer: {type(error).__name__}: {first_line}"
        todo = "check the connection, or give a local path"
    return ModelNotFound(f"MODEL {request.reference}: {repo}{at} on the hub: {why}; {todo}")


def _bar(progress: Progress) -> type[Any]:
    """A progress bar that draws nothing and reports; snapshot_download makes one for files, one for bytes."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            self._in_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def update(self, n: float | None = 1) -> bool | None:
            moved: bool | None = super().update(n)
            if self._in_bytes and self.total:
                progress("downloading", min(1.0, self.n / self.total))
            return moved

    return Bar


class _Nowhere:
    """A file that swallows what a bar draws."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        return None
